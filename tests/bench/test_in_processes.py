"""Runs of a benchmark in processes: what they count, and that they end with their parent."""

from __future__ import annotations

import os
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
    list(in_processes(measure, ["a", "b"], 1, str))
"""


def test_they_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path) as parent:
        assert eventually(lambda: bool(pids(tmp_path)))
        parent.kill()
    assert eventually(lambda: all(map(has_ended, pids(tmp_path))))


def pids(folder: Path) -> list[int]:
    return [int(text) for path in folder.glob("*.pid") if (text := path.read_text())]


COUNTING = """
import contextlib
from pathlib import Path
import metropolis.bench._in_processes as processes
from tests.waiting import eventually

@contextlib.contextmanager
def bar(total, unit):
    counted = []
    def advance(runs):
        counted.append(runs)
        Path(f"{sum(counted)}.counted").touch()
    yield advance, lambda text: None

def measure(task):
    yield task
    assert eventually(Path("1.counted").exists)
    yield task + 1

if __name__ == "__main__":
    processes.progress_bar = bar
    print(list(processes.in_processes(measure, [10, 20], 2, str)))
"""


def test_a_run_is_counted_before_its_task_ends(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(COUNTING)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[(10, [10, 11]), (20, [20, 21])]\n"
