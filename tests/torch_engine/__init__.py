"""The engine on torch; `.ci/torch-cpu .venv/bin/python` installs what these tests need."""

import pytest

for package in ("torch", "transformers"):
    pytest.importorskip(package, reason=f"{package} is not installed (metropolis[torch])")
