"""Runs of a benchmark in processes: what they count, and that they end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from metropolis.bench import _in_processes
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


def test_ctrl_c_ends_them(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as parent:
        assert eventually(lambda: len(pids(tmp_path)) == 2)
        os.killpg(parent.pid, signal.SIGINT)  # as a terminal does
        assert parent.wait(30) != 0
    assert eventually(lambda: all(map(has_ended, pids(tmp_path))))


def pids(folder: Path) -> list[int]:
    return [int(text) for path in folder.glob("*.pid") if (text := path.read_text())]


def two_runs(task: tuple[Path, int]) -> Iterator[int]:
    folder, number = task
    yield number
    assert eventually((folder / "1.counted").exists)
    yield number + 1


def test_a_run_is_counted_before_its_task_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def bar(_total: int, _unit: str) -> Iterator[tuple[Callable[[int], None], Callable[..., None]]]:
        counts = count(1)
        yield (lambda _runs: (tmp_path / f"{next(counts)}.counted").touch(), lambda _text: None)

    monkeypatch.setattr(_in_processes, "progress_bar", bar)
    first, second = (tmp_path, 10), (tmp_path, 20)
    found = list(_in_processes.in_processes(two_runs, [first, second], 2, str))
    assert found == [(first, [10, 11]), (second, [20, 21])]


DIES = """
import os, signal
from metropolis.bench._in_processes import in_processes

def measure(task):
    os.kill(os.getpid(), signal.SIGKILL)
    yield 1

if __name__ == "__main__":
    list(in_processes(measure, ["a", "b", "c"], 1, str))
"""


def test_the_death_of_one_ends_the_benchmark(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(DIES)
    ended = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert "MetropolisError: a process of the benchmark has ended" in ended.stderr


UNGUARDED = """
import sys
from metropolis.cli import main

sys.argv = ["metropolis", "bench", "agentix", "--programs=10", "--only=batches"]
main()
"""


def test_a_script_that_calls_a_benchmark_needs_a_guard(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(UNGUARDED)
    ended = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    # Python's process that counts semaphores may warn after the sentence.
    lines = [line for line in ended.stderr.splitlines() if "resource_tracker" not in line]
    assert lines[-1].endswith('outside of `if __name__ == "__main__":`')
