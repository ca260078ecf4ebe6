"""Runs of a benchmark in processes: they end with the process that has started them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.waiting import eventually, has_ended

PROGRAM = """
import os
from pathlib import Path
from metropolis.bench._in_processes import in_processes

def measure(task):
    Path(f"{task}.pid").write_text(str(os.getpid()))
    while True:
        sum(range(1000))

if __name__ == "__main__":
    list(in_processes(measure, ["a", "b"], "runs", str))
"""


def test_they_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path) as parent:
        assert eventually(lambda: bool(pids(tmp_path)))
        parent.kill()
    assert eventually(lambda: all(map(has_ended, pids(tmp_path))))


def pids(folder: Path) -> list[int]:
    return [int(text) for path in folder.glob("*.pid") if (text := path.read_text())]
