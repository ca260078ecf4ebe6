"""The engine on torch.

Where torch is not installed, these tests use that of the environment that `.ci/sglang-cpu` makes.
"""

import site
import sys
from importlib.util import find_spec

import pytest

from tests.real_engines import packages_of

METROPOLIS = "from metropolis.cli import main; main()"
if find_spec("torch") is None and (packages := packages_of("sglang")):
    # Its .pth files declare what transformers needs to import torchvision, which is for CUDA.
    site.addsitedir(str(packages))
    METROPOLIS = f"import site; site.addsitedir({str(packages)!r}); {METROPOLIS}"
COMMAND = [sys.executable, "-c", METROPOLIS]
"""Starts metropolis in an interpreter that has torch."""
for package in ("torch", "transformers"):
    pytest.importorskip(
        package, reason=f"{package} is not installed (metropolis[torch], or .ci/sglang-cpu)"
    )
