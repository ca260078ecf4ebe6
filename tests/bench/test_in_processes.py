"""Runs of a benchmark in processes: they end with the process that has started them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PROGRAM = """
from pathlib import Path
import os, time
from metropolis.bench._in_processes import in_processes

def measure(task):
    Path(f"{task}.pid").write_text(str(os.getpid()))
    while True:
        sum(range(1000))

if __name__ == "__main__":
    list(in_processes(measure, ["a", "b"], "runs", str))
"""
PATIENCE_S = 60.0


def test_they_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path) as parent:
        await_that(lambda: any(path.read_text() for path in tmp_path.glob("*.pid")))
        parent.kill()
    children = [path.read_text() for path in tmp_path.glob("*.pid")]
    await_that(lambda: not any(map(runs, children)))


def await_that(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def runs(process: str) -> bool:
    try:
        state = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"  # it has ended, and nobody has asked for its status
