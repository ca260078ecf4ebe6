"""The engine on torch.

Where torch is not installed, these tests use that of the environment that `.ci/sglang-cpu` makes.
"""

import sys
from importlib.util import find_spec

import pytest

from tests.real_engines import packages_of

if find_spec("torch") is None and (packages := packages_of("sglang")):
    sys.path.append(str(packages))
for package in ("torch", "transformers"):
    pytest.importorskip(
        package, reason=f"{package} is not installed (metropolis[torch], or .ci/sglang-cpu)"
    )
