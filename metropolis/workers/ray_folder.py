"""The folder of a Ray cluster's files, which a later run removes if its own was killed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

PARENT, PREFIX = Path("/tmp"), "mr-"
"""Ray's sockets need a short path."""
LOCK = "run.lock"
"""A file that the run locks as long as it lives."""


@contextmanager
def ray_folder() -> Iterator[str]:
    """Remove the folders of this user's killed runs, and make one that lasts for the context."""
    _remove_abandoned()
    with (
        TemporaryDirectory(prefix=PREFIX, dir=PARENT, ignore_cleanup_errors=True) as folder,
        Path(folder, "locking").open("x") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        Path(lock.name).rename(Path(folder, LOCK))  # other runs find it only when it is locked
        yield folder


def _remove_abandoned() -> None:
    for path in PARENT.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):  # the folder's run lives, or another process removes it
            if path.parent.lstat().st_uid == os.geteuid():
                with path.open() as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    rmtree(path.parent)
