"""The C++ unit tests, and hostile arguments, under AddressSanitizer and UndefinedBehaviorSanitizer.

Builds the tests and the extension with both.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pybind11
import pytest

from tests.core.fuzz import fuzz

ROOT = Path(__file__).parent.parent
SANITIZED_CASES = 500
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


def configure(build: Path, *settings: str) -> None:
    run(
        "cmake",
        *("-S", ROOT / "cpp", "-B", build, "-G", "Ninja"),
        "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG",  # the tests take seconds, their build a minute
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        f"-DPython_EXECUTABLE={sys.executable}",
        *settings,
    )


@pytest.fixture(scope="module")
def built() -> Path:
    build = ROOT / "build" / "cpp-tests"
    configure(build, "-DMETROPOLIS_TESTS=ON", "-DMETROPOLIS_SANITIZE=ON")
    run("cmake", "--build", build)
    return build


def check_unit_tests(build: Path) -> None:
    tests = build / "metropolis_tests"
    if not tests.exists():
        pytest.skip("doctest is not installed; Debian has it: apt install doctest-dev")
    assert "SUCCESS" in run(tests)


def check_hostile_arguments(build: Path) -> None:
    [extension] = build.glob("_core*.so")
    compiler = re.search(r"CMAKE_CXX_COMPILER:\w+=(.*)", (build / "CMakeCache.txt").read_text())
    assert compiler
    # The interceptors look for those of C++ when the process begins.
    libraries = [
        run(compiler[1], f"-print-file-name={name}").strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    assert all(Path(path).is_absolute() for path in libraries), libraries
    assert not fuzz(extension, 0, SANITIZED_CASES, preload=" ".join(libraries)).findings


def test_the_core_passes_its_unit_tests(built: Path) -> None:
    check_unit_tests(built)


def test_hostile_arguments_touch_no_foreign_memory(built: Path) -> None:
    check_hostile_arguments(built)


@pytest.mark.campaign
def test_no_iterator_leaves_its_container(tmp_path: Path) -> None:
    """The same with checked iterators, which take twice as long to compile."""
    checked = "-DCMAKE_CXX_FLAGS=-D_GLIBCXX_DEBUG"
    configure(tmp_path, "-DMETROPOLIS_TESTS=ON", "-DMETROPOLIS_SANITIZE=ON", checked)
    run("cmake", "--build", tmp_path)
    check_hostile_arguments(tmp_path)
    check_unit_tests(tmp_path)


@pytest.mark.campaign
def test_every_file_includes_what_it_uses(tmp_path: Path) -> None:
    configure(tmp_path, "-DCMAKE_UNITY_BUILD=OFF")
    run("cmake", "--build", tmp_path, "--target", "metropolis_core", "metropolis_headers")


def test_the_sources_are_formatted() -> None:
    files = [path for path in (ROOT / "cpp").rglob("*") if path.suffix in {".cpp", ".hpp"}]
    run("clang-format", "--dry-run", "--Werror", *files)


def test_a_body_on_a_line_of_its_own_has_braces() -> None:
    for path in (ROOT / "cpp").rglob("*.?pp"):
        text = re.sub(r"//.*", "", path.read_text())
        for start in re.finditer(r"^ *(?:} else )?(?:if|for|while) (?:constexpr )?\(", text, re.M):
            end, depth = start.end(), 1
            while depth:
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
            line = text[: start.start()].count("\n") + 1
            assert not re.match(r" *\n", text[end:]), f"{path.relative_to(ROOT)}:{line}"
