"""Files that detect their own damage; docs/run-folder.md describes the format.

A line is `{"line":N,"crc32":C,FIELDS}`: N counts from 1, C is the CRC-32 of FIELDS, continued from
the line before. This detects a changed, missing, repeated or moved line, and a line of another run,
because the first line names the run. An object for people to read is `{"crc32":C,FIELDS}`.
CRC-32 detects damage, not forgery.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

import msgspec

from metropolis.types import MetropolisError

LINE_MAX_BYTES = 1 << 30
_IS = b'"is":'
_OBJECT = b'{"crc32":'


class UnwritableError(MetropolisError):
    """A file cannot be written: the disk is full, for instance."""


class DamagedError(MetropolisError):
    """A file differs from what was written."""

    def __init__(self, sentence: str, path: Path | None = None) -> None:
        """`path` is the file; None: more than one."""
        super().__init__(sentence)
        self.path = path


@dataclass(frozen=True)
class Format:
    """The format of a kind of file."""

    name: str
    version: int
    repair: str
    """How to repair damage; `{intact}` stands for the number of intact lines before it."""

    def header(self, run: str) -> bytes:
        """The fields of the first line of a file of `run`."""
        return b'"format":"%b","version":%d,"run":"%b"' % (
            self.name.encode(),
            self.version,
            run.encode(),
        )

    def damaged(self, path: Path, number: int, why: str) -> DamagedError:
        """The error for line `number`."""
        repair = self.repair.format(intact=number - 1)
        return DamagedError(f"{path}, line {number}: is damaged ({why}); {repair}", path)


class Mark(NamedTuple):
    """A position in a file: the number of lines after the first one, and the checksum there."""

    lines: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file."""

    mark: Mark
    fields: bytes
    end: int
    """The size of the file up to and including this line, in bytes."""

    @property
    def content(self) -> bytes:
        """The JSON value of the last field, `is`."""
        return self.fields.partition(_IS)[2]


def with_content(content: bytes, before: bytes = b"") -> bytes:
    """The fields of a line with `content`, after the fields `before`."""
    return b"%b%b%b" % (before, _IS, content)


class LineFile:
    """A file to which lines are appended after its content has been read.

    Raises MetropolisError when the file is of another run or format.
    """

    def __init__(self, path: Path, kind: Format, run: str | None) -> None:
        """Open or create the file of `run`; None: of any run."""
        self.path, self._kind, self._run = path, kind, run
        self._file = open_regular(path, "a+")
        self.mark, self._size = Mark(-1, 0), 0
        self._first: Line | None = None

    def read(self) -> Iterator[Line]:
        """The lines after the first one. Raises DamagedError at the first damaged line."""
        self._file.seek(0)
        with open(os.dup(self._file.fileno()), "rb") as file:
            lines = _lines(file, self.path, self._kind, self._run)
            self._first = next(lines, None)
            yield from lines

    def cut(self, last: Line | None) -> None:
        """Truncate the file after `last`, which was read; None: after the first line."""
        last = last or self._first
        self.mark, self._size = (last.mark, last.end) if last else (Mark(-1, 0), 0)
        with reported(self.path):
            self._file.truncate(self._size)
        if last is None:
            self.append([self._kind.header(self._run or "")])

    def append(self, lines: Iterable[bytes]) -> None:
        """Write the fields of the next lines, all or none.

        Raises UnwritableError when they cannot be written.
        """
        count, checksum = self.mark
        block = bytearray()
        for fields in lines:
            count, checksum = count + 1, crc32(fields, checksum)
            block += b'{"line":%d,"crc32":%d,%b}\n' % (count + 1, checksum, fields)
        with reported(self.path):
            try:
                write_all(self._file, block)
            except OSError:
                self._file.truncate(self._size)
                raise
        self.mark, self._size = Mark(count, checksum), self._size + len(block)

    def sync(self) -> None:
        """Flush to disk, so that the content survives a power cut."""
        with reported(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def fileno(self) -> int:
        """The descriptor of the open file."""
        return self._file.fileno()


def read_lines(
    path: Path, kind: Format, run: str | None = None, after: Line | None = None
) -> Iterator[Line]:
    """Yield the lines of a file of `run` (None: of any run), those behind the line `after` only if
    it is given; none if the file does not exist.

    An unfinished last line is skipped. Raises DamagedError at the first damaged line,
    MetropolisError when the file is of another run or format.
    """
    if path.exists():
        with open_regular(path, "r") as raw, open(raw.fileno(), "rb", closefd=False) as file:
            lines = _lines(file, path, kind, run, after)
            yield from islice(lines, 1 if after is None else 0, None)


def write_document(path: Path, kind: Format, run: str, content: bytes) -> None:
    """Write a compressed file of one line atomically, so that it survives a power cut."""
    fields = with_content(content, kind.header(run) + b",")
    line = b'{"line":1,"crc32":%d,%b}\n' % (crc32(fields), fields)
    write_atomically(path, gzip.compress(line, compresslevel=1, mtime=0))


def read_document(path: Path, kind: Format, run: str | None = None, form: Any = Any) -> Any:
    """Read the content that `write_document` wrote, as the type `form`.

    Raises MetropolisError as `read_lines`.
    """
    with open_regular(path, "r") as file, gzip.open(file) as compressed:
        try:
            text = compressed.read(LINE_MAX_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise kind.damaged(path, 1, f"{error}".lower()) from None
    line = _checked(text, _begins(1), 0)
    if isinstance(line, str):
        raise kind.damaged(path, 1, line)
    header, _, content = line.partition(b"," + _IS)
    _check_header(header, path, kind, run)
    try:
        return msgspec.json.decode(content, type=form)
    except (ValueError, RecursionError) as error:
        raise kind.damaged(path, 1, f"{error}") from None


def write_object(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object for people to read, as `write_atomically`."""
    fields = json.dumps(content, indent=2).encode()[1:-1]
    write_atomically(path, b"%b%d,%b}\n" % (_OBJECT, crc32(fields), fields))


def read_object(path: Path, repair: str) -> dict[str, Any]:
    """Read what `write_object` wrote. Raises DamagedError; `repair` says how to repair damage."""
    with open_regular(path, "r") as file:
        text = file.readall()
    fields = _checked(text, _OBJECT, 0)
    if isinstance(fields, str):
        raise DamagedError(f"{path}: is damaged ({fields}); {repair}", path)
    try:
        content: dict[str, Any] = json.loads(b"{%b}" % fields)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: is damaged ({error}); {repair}", path) from None
    return content


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file atomically, so that it survives a power cut. Raises UnwritableError."""
    partial = path.with_suffix(".partial")
    with reported(path):
        try:
            partial.unlink(missing_ok=True)  # of a killed process, or a link
            with FileIO(partial, "x", opener=_private) as file:
                write_all(file, content)
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def open_regular(path: Path, mode: str) -> FileIO:
    """Open an unbuffered file. Raises DamagedError when it cannot be opened."""
    if path.exists() and not path.is_file():
        raise DamagedError(f"{path}: is not a regular file; restore the file of that name", path)
    try:
        return FileIO(path, mode, opener=_private)
    except OSError as error:
        raise DamagedError(
            f"{path}: cannot be opened: {error.strerror}; restore the file of that name", path
        ) from error


def _private(path: str, flags: int) -> int:
    """Open with permissions for this user only."""
    return os.open(path, flags, 0o600)


def _lines(
    file: BinaryIO, path: Path, kind: Format, run: str | None, after: Line | None = None
) -> Iterator[Line]:
    checksum = end = number = 0
    if after is not None:
        number, checksum, end = after.mark.lines + 1, after.mark.crc32, after.end
        file.seek(end)
    while (text := file.readline(LINE_MAX_BYTES)).endswith(b"\n"):
        number += 1
        fields = _checked(text, _begins(number), checksum)
        if isinstance(fields, str):
            if number == 1:
                fields += f", or the file is not a {kind.name} of version {kind.version}"
            raise kind.damaged(path, number, fields)
        checksum, end = crc32(fields, checksum), end + len(text)
        if number == 1:
            _check_header(fields, path, kind, run)
        yield Line(Mark(number - 1, checksum), fields, end)
    begins = _begins(1)
    if not number and text[: len(begins)] != begins[: len(text)]:
        raise kind.damaged(path, 1, f"it is not a {kind.name} of version {kind.version}")
    if len(text) == LINE_MAX_BYTES:
        raise kind.damaged(path, number + 1, "it is too long")


def _begins(number: int) -> bytes:
    return b'{"line":%d,"crc32":' % number


def _checked(text: bytes, begins: bytes, checksum: int) -> bytes | str:
    """The fields between the checksum that follows `begins` and the end, or the error as text."""
    if not text.startswith(begins):
        return f"it should begin with {begins.decode()}"
    if not text.endswith(b"}\n"):
        return "it is incomplete"
    stated, _, fields = text[len(begins) : -2].partition(b",")
    if stated != b"%d" % crc32(fields, checksum):
        return "its checksum does not fit"
    return fields


def _check_header(fields: bytes, path: Path, kind: Format, run: str | None) -> None:
    try:
        header = msgspec.json.decode(b"{%b}" % fields)
        found = header["format"], header["version"]
        owner = header["run"]
    except (ValueError, KeyError):
        raise kind.damaged(path, 1, f"it is not a {kind.name}") from None
    if found != (kind.name, kind.version):
        raise MetropolisError(
            f"{path}: is a {found[0]} of version {found[1]}; this release reads a {kind.name} of "
            f"version {kind.version}"
        )
    if run is not None and owner != run:
        raise MetropolisError(
            f"{path}: belongs to run {owner or 'of another folder'}, and the folder to run {run}; "
            "restore the file of this run"
        )


def write_all(file: FileIO, content: bytes | bytearray | memoryview) -> None:
    """Write `content` to an unbuffered file."""
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Raise an OSError as UnwritableError, with the file's name."""
    try:
        yield
    except OSError as error:
        raise UnwritableError(f"{path}: cannot be written: {error.strerror or error}") from error
