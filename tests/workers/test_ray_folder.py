"""Folders of Ray clusters end with their runs; a later run removes those of killed ones."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory

from metropolis.workers.ray_folder import PARENT, PREFIX, ray_folder

HOLDING = """
import sys
from metropolis.workers.ray_folder import ray_folder
with ray_folder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


def holder() -> tuple[Popen[str], Path]:
    """A process with a folder until its input ends; the folder has content."""
    process = Popen([sys.executable, "-c", HOLDING], stdin=PIPE, stdout=PIPE, text=True)
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    (folder / "session").mkdir()
    (folder / "session" / "log").write_text("Ray writes here")
    return process, folder


def test_a_later_run_removes_the_folder_of_a_killed_one_only() -> None:
    (killed, abandoned), (alive, kept) = holder(), holder()
    killed.kill()
    killed.communicate()
    assert abandoned.is_dir()
    with TemporaryDirectory(prefix=PREFIX, dir=PARENT) as other, ray_folder() as own:
        assert [Path(one).is_dir() for one in (other, own, kept, abandoned)] == [True] * 3 + [False]
        with ray_folder() as second:
            assert Path(second).is_dir()
            assert Path(own).is_dir()
    assert not Path(own).exists()
    alive.communicate()
    assert not kept.exists()
