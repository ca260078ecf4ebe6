"""Builds the C++ unit tests with AddressSanitizer and UndefinedBehaviorSanitizer and runs them."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# The test extra brings cmake, ninja and clang-format into this environment, activated or not.
ENVIRONMENT = os.environ | {
    "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
}


def run(*command: str | Path) -> str:
    result = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.fixture(scope="module")
def built() -> Path:
    build = ROOT / "build" / "cpp-tests"
    run(
        "cmake",
        *("-S", ROOT / "cpp", "-B", build, "-G", "Ninja"),
        "-DMETROPOLIS_TESTS=ON",
        "-DMETROPOLIS_SANITIZE=ON",
    )
    run("cmake", "--build", build)
    return build


def test_the_core_passes_its_unit_tests(built: Path) -> None:
    assert "SUCCESS" in run(built / "metropolis_tests")


def test_the_sources_are_formatted() -> None:
    files = [
        path
        for path in (ROOT / "cpp").rglob("*")
        if path.suffix in {".cpp", ".hpp"} and path.name != "doctest.h"
    ]
    run("clang-format", "--dry-run", "--Werror", *files)
