"""The tutorial, followed literally: every block, in its order, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

from metropolis.worlds import minimal

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
CHECKED = f"mypy --strict --config-file '{ROOT}/pyproject.toml' --cache-dir '{ROOT}/.mypy_cache'"
BLOCK = re.compile(r"^\*\*([\w.]+)\*\*$|^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def shell(command: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path, "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


def assert_told(expected: str, output: str) -> None:
    """The lines of `expected` are in `output`, in order; without `…` nothing lies between them."""
    told = output.splitlines()
    at = 0
    gap = False
    for line in expected.splitlines():
        if line == "…":
            gap = True
            continue
        found = told.index(line, at)
        assert gap or found == at, f"before {line!r}: {told[at:found]}"
        at, gap = found + 1, False
    assert gap or at == len(told), told[at:]


def test_the_tutorial(tmp_path: Path) -> None:
    file, output = "", ""
    done = {"python": 0, "sh": 0, "text": 0}
    for name, kind, content in BLOCK.findall(TUTORIAL.read_text()):
        if name:
            file = name
            continue
        done[kind] += 1
        if kind == "python":
            with (tmp_path / file).open("a") as target:
                target.write(content if not target.tell() else f"\n\n{content}")
        elif kind == "sh":
            output = shell(content, tmp_path)
        else:
            assert_told(content, output)
    assert min(done.values()) >= 4
    shell(f"{CHECKED} *.py", tmp_path)
    written = (tmp_path / "green.py").read_text()
    assert written == Path(minimal.__file__).read_text(), "what is written is what ships"
