"""Files in an embedded store's folder, possibly made by others: links are not followed."""

from __future__ import annotations

import os
import stat
from itertools import chain
from pathlib import Path

from metropolis.store.base import StoreError
from metropolis.store.seals import open_private

_FILES = ("lock", "address*", "server.log", "appendonly*", "appendonlydir/*", "temp*", "seal*")
"""Files that this process or the server may open."""
_FOLDER = "appendonlydir"


def check_files(folder: Path) -> None:
    """Raise StoreError if a file there leads elsewhere, or belongs to another user."""
    for path in chain.from_iterable(map(folder.glob, _FILES)):
        try:
            about = path.lstat()
        except FileNotFoundError:  # another process has just replaced it
            continue
        if path == folder / _FOLDER and stat.S_ISDIR(about.st_mode):
            continue
        if not stat.S_ISREG(about.st_mode):
            raise StoreError(
                f"{path}: is not a regular file; a store's folder holds regular files only"
            )
        if about.st_uid != os.geteuid() or about.st_nlink > 1:
            whose = "is another user's" if about.st_nlink == 1 else "is a file elsewhere, too"
            raise StoreError(f"{path}: {whose}; copy the folder, and use the copy")


def read_private(path: Path, bytes_max: int) -> bytes:
    """The first `bytes_max` bytes of a regular file. Raises StoreError if it is unreadable."""
    try:
        with open(path, "rb", opener=open_private) as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read(bytes_max)
    except OSError:
        pass
    raise StoreError(f"{path}: is not a readable regular file; remove it")
