"""Atomically replaced files, and JSON objects that detect their own damage.

An object for people to read is `{"crc32":C,FIELDS}`, C is the CRC-32 of FIELDS; docs/run-folder.md
describes the format. CRC-32 detects damage, not forgery.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import ELOOP, ENOENT, ENOTDIR
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any
from zlib import crc32

from metropolis.types import MetropolisError

_OBJECT = b'{"crc32":'
RESTORE = "restore the file of that name"
"""The repair of a file that nothing else can replace."""


class UnwritableError(MetropolisError):
    """A file cannot be written: the disk is full, for instance."""


class DamagedError(MetropolisError):
    """A file differs from what was written."""

    def __init__(self, flaw: str, repair: str, path: Path | None = None) -> None:
        """`flaw` names the file and what is wrong; `path` is the file; None: more than one."""
        super().__init__(f"{flaw}; {repair}")
        self.flaw, self.path, self._repair = flaw, path, repair

    def __reduce__(self) -> tuple[type[DamagedError], tuple[str, str, Path | None]]:
        return DamagedError, (self.flaw, self._repair, self.path)


def write_object(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object for people to read, as `write_atomically`."""
    fields = json.dumps(content, indent=2).encode()[1:-1]
    write_atomically(path, b"%b%d,%b}\n" % (_OBJECT, crc32(fields), fields))


def read_object(path: Path, repair: str) -> dict[str, Any]:
    """Read what `write_object` wrote. Raises DamagedError; `repair` says how to repair damage."""
    with readable(path), open_regular(path, "r") as file:
        text = file.readall()
    fields = checked(text, _OBJECT, 0)
    if isinstance(fields, str):
        raise DamagedError(f"{path}: is damaged ({fields})", repair, path)
    try:
        content: dict[str, Any] = json.loads(b"{%b}" % fields)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: is damaged ({error})", repair, path) from None
    return content


def check_format(
    path: Path, content: Mapping[str, Any], name: str, version: int, repair: str
) -> None:
    """Raise MetropolisError unless the object in `path` states the format `name` and `version`."""
    if (content.get("format"), content.get("version")) != (name, version):
        raise MetropolisError(
            f"{path}: is of another format or version; this release reads {name}, version "
            f"{version}: {repair}"
        )


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file atomically, so that it survives a power cut. Raises UnwritableError.

    `mode`: that of the new file, limited by the umask. By default only this user may read it.
    """
    unfinished = path.with_name(f".{path.name}.partial")
    with reported(path):
        try:
            unfinished.unlink(missing_ok=True)  # left by a killed process, or a link
            with FileIO(unfinished, "x", opener=partial(os.open, mode=mode)) as file:
                write_all(file, content)
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise


def open_regular(path: Path, mode: str) -> FileIO:
    """Open an unbuffered file. Raises DamagedError, or UnwritableError to write, if that fails."""
    if path.exists() and not path.is_file():
        raise DamagedError(f"{path}: is not a regular file", RESTORE, path)
    try:
        return FileIO(path, mode, opener=partial(os.open, mode=0o600))
    except OSError as error:
        if mode != "r":
            raise UnwritableError(f"{path}: cannot be written: {error.strerror}") from error
        raise DamagedError(f"{path}: cannot be opened: {error.strerror}", RESTORE, path) from error


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Within this context, turn an OSError into a DamagedError that names the file."""
    try:
        yield
    except OSError as error:
        raise DamagedError(f"{path}: cannot be read: {error.strerror}", RESTORE, path) from error


def reachable(path: Path) -> Path:
    """Return `path`. Raises OSError if what is there cannot be known, for lack of permission say.

    There `Path.exists`, `is_file` and `is_dir` return False as of Python 3.14.
    """
    try:
        path.stat()
    except ValueError:  # a zero byte
        pass
    except OSError as error:
        if error.errno not in (ENOENT, ENOTDIR, ELOOP):
            raise
    return path


def checked(text: bytes, begins: bytes, checksum: int) -> bytes | str:
    """Return the fields of the line `text`, or a text that says why the line is damaged.

    A line is `begins`, its checksum, a comma, the fields, "}" and a line break. `checksum` is the
    checksum of the line before, from which this one is computed.
    """
    if not text.startswith(begins):
        return f"it should begin with {begins.decode()}"
    if not text.endswith(b"}\n"):
        return "it is incomplete"
    stated, _, fields = text[len(begins) : -2].partition(b",")
    if stated != b"%d" % crc32(fields, checksum):
        return "its checksum does not fit"
    return fields


def write_all(file: FileIO, content: bytes | bytearray | memoryview) -> None:
    """Write `content` to an unbuffered file."""
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Within this context, turn an OSError into an UnwritableError that names the file."""
    try:
        yield
    except OSError as error:
        raise UnwritableError(f"{path}: cannot be written: {error.strerror or error}") from error
