"""Files of numbered, checksummed lines; docs/run-folder.md describes the format.

A line is `{"line":N,"crc32":C,FIELDS}`: N counts from 1, C is the CRC-32 of FIELDS, continued from
the line before. This detects a changed, missing, repeated or moved line, and a line of another run,
because the first line names the run.

The newest lines are in `NAME.jsonl`. When they exceed SEGMENT_BYTES they are compressed into a
segment, `NAME/FIRST.jsonl.gz`, where FIRST is the number of its first line. A segment whose first
line is also in `NAME.jsonl`, or after it, is superseded: a process was killed before it removed the
one or the other.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO, FileIO
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

import msgspec

from metropolis.durable import (
    DamagedError,
    checked,
    open_regular,
    reachable,
    readable,
    reported,
    write_all,
    write_atomically,
)
from metropolis.types import MetropolisError

LINE_MAX_BYTES = 1 << 30
SEGMENT_BYTES = 1 << 20
LEVEL = 5
"""Compression of documents: 22 % smaller than level 1 in twice its time (residents' minds)."""
T = TypeVar("T")
_NUMBER_MAX = 10**18
_IS = b'"is":'
_NUMBER = re.compile(rb'\{"line":([0-9]{1,18}),')
_SEGMENT = "[0-9]" * 12 + ".jsonl.gz"


class RewoundError(DamagedError):
    """A file no longer has a line that was read: a run was resumed, and repeats its last steps."""


@dataclass(frozen=True)
class Format:
    """The format of a kind of file."""

    name: str
    version: int
    repair: str
    """How to repair damage; `{intact}` stands for the number of intact lines before the damage."""

    def header(self, run: str) -> bytes:
        """The fields of the first line of a file of `run`."""
        return b'"format":"%b","version":%d,"run":"%b"' % (
            self.name.encode(),
            self.version,
            run.encode(),
        )

    def damaged(self, path: Path, number: int, why: str, first: int = 1) -> DamagedError:
        """The error for line `number`; `first` is the number of the file's first line."""
        repair = self.repair.format(intact=number - first)
        if number == first == 1 and repair != self.repair:  # nothing is intact
            repair = f"it may not be a {self.name}: name such a file, or restore this one"
        elif number < first:  # the lines between are missing, or the file is another run's
            repair = f"it begins with line {first}; restore the file"
        return DamagedError(f"{path}, line {number}: is damaged ({why})", repair, path)

    def decoded(self, line: Line, decode: Callable[[bytes], T]) -> T:
        """What `decode` makes of the line's content; DamagedError: it is of another form."""
        try:
            return decode(line.content)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            why = f"its content is not that of a {self.name}: {error}"
            raise self.damaged(line.file, line.mark.lines + 1, why, line.first) from None


class Mark(NamedTuple):
    """A position in a file: the number of lines after the first one, and the checksum there."""

    lines: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file."""

    mark: Mark
    fields: bytes
    file: Path
    """The file that contains the line: the file that was given, or one of its segments."""
    first: int
    """The number of the first line in `file`."""

    @property
    def content(self) -> bytes:
        """The JSON value of the last field, `is`."""
        return self.fields.partition(_IS)[2]


def with_content(content: bytes, before: bytes = b"") -> bytes:
    """Return the fields of a line: the fields `before`, then `content` as the field `is`."""
    return b"%b%b%b" % (before, _IS, content)


class LineFile:
    """A file to which lines are appended after its content has been read.

    Args:
        path: the file, created if missing; its segments are in the folder of that name without
            suffix.
        kind: its format.
        run: the run that it belongs to; None: any run.
        exclusive: whether it is locked against other processes.

    Raises MetropolisError when the file is of another run or format, or in use.
    """

    def __init__(self, path: Path, kind: Format, run: str | None, exclusive: bool = False) -> None:
        self.path, self._kind, self._run, self._exclusive = path, kind, run, exclusive
        self._file = self._open()
        self.mark, self._size = Mark(-1, 0), 0
        self._first: Line | None = None

    def read(self) -> Iterator[Line]:
        """The lines after the first one. Raises DamagedError at the first damaged line."""
        lines = _lines(self.path, self._kind, self._run)
        self._first = next(lines, None)
        yield from lines

    def cut(self, last: Line | None) -> None:
        """Remove the lines after `last`, which was read; None: all after the file's first line."""
        last = last or self._first
        with reported(self.path):
            if last is None:
                self._file.truncate(0)
                self._remove_segments(1)
                self.append([self._kind.header(self._run or "")])
                return
            kept = self._to(last)
            if last.file == self.path:
                self._file.truncate(len(kept))
            else:
                self._replace(kept)
            self.mark, self._size = last.mark, len(kept)
            self._remove_segments(last.first)

    def _remove_segments(self, since: int) -> None:
        """Remove the segments whose first line is `since` or later, from the last to the first."""
        for first, segment in reversed(_segments(self.path)):
            if first >= since:
                segment.unlink()

    def _to(self, last: Line) -> bytes:
        """The lines of the file `last.file`, up to and with `last`."""
        texts = _texts(self.path, self._kind, last.first)
        count = last.mark.lines + 2 - last.first
        return b"".join(text for _, _, text in islice(texts, count))

    def append(self, lines: Iterable[bytes]) -> None:
        """Append a line for each of `lines`, the lines' fields; all are written, or none.

        Raises UnwritableError when they cannot be written.
        """
        if self._size >= SEGMENT_BYTES:
            with reported(self.path):
                self._seal()
        count, checksum = self.mark
        block = bytearray()
        for fields in lines:
            count, checksum = count + 1, crc32(fields, checksum)
            block += _line(count + 1, checksum, fields)
        with reported(self.path):
            try:
                write_all(self._file, block)
            except OSError:
                self._file.truncate(self._size)
                raise
            self.mark, self._size = Mark(count, checksum), self._size + len(block)

    def _seal(self) -> None:
        """Compress the lines of the file into a segment."""
        content = os.pread(self._file.fileno(), self._size, 0)
        first = _first_number(self._file)
        folder = self.path.with_suffix("")
        folder.mkdir(mode=0o700, exist_ok=True)
        write_atomically(folder / f"{first:012}.jsonl.gz", gzip.compress(content, 6, mtime=0))
        self._replace(b"")

    def _replace(self, content: bytes) -> None:
        """Replace the file atomically. A process that has opened it still reads the old content."""
        write_atomically(self.path, content)
        replaced, self._file = self._file, self._open()
        replaced.close()
        self._size = len(content)

    def _open(self) -> FileIO:
        while True:
            file = open_regular(self.path, "a+")
            if not self._exclusive:
                return file
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                    return file
            except BlockingIOError:
                file.close()
                raise MetropolisError(
                    f"{self.path} is in use by another run; wait for it to end"
                ) from None
            file.close()  # the file was replaced while it was opened

    def sync(self) -> None:
        """Flush to disk, so that the content survives a power cut."""
        with reported(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_lines(
    path: Path, kind: Format, run: str | None = None, after: Mark | None = None
) -> Iterator[Line]:
    """Yield the lines of a file of `run` (None: of any run); none if the file does not exist.

    With `after`, only the lines after that position are yielded; otherwise all but the first one,
    the header. An unfinished last line is skipped. The file may grow meanwhile.

    Raises DamagedError at the first damaged line, RewoundError if the line at `after` is no longer
    there, MetropolisError when the file is of another run or format.
    """
    if reachable(path).exists():
        lines = _lines(path, kind, run, after)
        yield from islice(lines, 1 if after is None else 0, None)


def texts_of_lines(path: Path, kind: Format, number: int) -> Iterator[bytes]:
    """Yield the lines from line `number` on, without a comparison with their checksums.

    Raises DamagedError if a file cannot be read.
    """
    return (text for _, _, text in _texts(path, kind, number))


def write_document(path: Path, kind: Format, run: str, content: Iterable[bytes]) -> None:
    """Write a compressed file of one line atomically, so that it survives a power cut.

    Only one piece of `content` is in memory at a time.
    """
    before = with_content(b"", kind.header(run) + b",")
    checksum, packer, packed = crc32(before), zlib.compressobj(LEVEL, wbits=31), []
    for piece in content:
        checksum = crc32(piece, checksum)
        packed.append(packer.compress(piece))
    packed += packer.compress(b"}\n"), packer.flush()
    begins = b"%b%d,%b" % (_begins(1), checksum, before)  # the first of two gzip members
    write_atomically(path, b"".join([gzip.compress(begins, 1, mtime=0), *packed]))


def read_document(path: Path, kind: Format, run: str | None = None, form: Any = Any) -> Any:
    """Read the content that `write_document` wrote, as the type `form`.

    Raises DamagedError on damage, MetropolisError if the file is of another run or format.
    """
    line = checked(_decompressed(path, kind, 1), _begins(1), 0)
    if isinstance(line, str):
        raise kind.damaged(path, 1, line)
    header, _, content = line.partition(b"," + _IS)
    _check_header(header, path, kind, run)
    try:
        return msgspec.json.decode(content, type=form)
    except (ValueError, RecursionError) as error:
        raise kind.damaged(path, 1, f"{error}") from None


def _lines(path: Path, kind: Format, run: str | None, after: Mark | None = None) -> Iterator[Line]:
    number, checksum = (0, 0) if after is None else (after.lines + 1, after.crc32)
    texts = _texts(path, kind, max(1, number))
    text = b""
    if after is not None:
        _, _, text = next(texts, (path, 1, b""))
        if not text.startswith(b"%b%d," % (_begins(number), checksum)):
            raise RewoundError(f"{path}: no longer has its line {number}", "read it again", path)
    for file, first, text in texts:
        if not text.endswith(b"\n"):
            break
        number += 1
        fields = checked(text, _begins(number), checksum)
        if isinstance(fields, str):
            if number == 1:
                fields += f", or the file is not a {kind.name} of version {kind.version}"
            raise kind.damaged(file, number, fields, first)
        checksum = crc32(fields, checksum)
        if number == 1:
            _check_header(fields, file, kind, run)
        yield Line(Mark(number - 1, checksum), fields, file, first)
    begins = _begins(1)
    if not number and text[: len(begins)] != begins[: len(text)]:
        raise kind.damaged(path, 1, f"it is not a {kind.name} of version {kind.version}")
    if len(text) == LINE_MAX_BYTES:
        raise kind.damaged(path, number + 1, "it is too long")


def _texts(path: Path, kind: Format, number: int) -> Iterator[tuple[Path, int, bytes]]:
    """Yield the lines from line `number` on: the file, the number of its first line, the line.

    The last line may be unfinished.
    """
    with (
        readable(path),
        open_regular(path, "r") as raw,
        open(raw.fileno(), "rb", closefd=False) as newest,
    ):
        start = _first_number(raw)  # before the segments are listed: this file may become one
        segments = [part for part in _segments(path) if start is None or part[0] < start]
        following = 1
        for (first, segment), (end, _) in pairwise([*segments, (start or _NUMBER_MAX, path)]):
            if number < end:
                content = _decompressed(segment, kind, first)
                following = first + content.count(b"\n")
                for text in islice(BytesIO(content), max(0, number - first), None):
                    yield segment, first, text
        first = start or following
        for _ in range(number - first):
            newest.readline(LINE_MAX_BYTES)
        while text := newest.readline(LINE_MAX_BYTES):
            yield path, first, text


def _first_number(file: FileIO) -> int | None:
    """The number of the first line of a file; None: it is empty, or damaged."""
    found = _NUMBER.match(os.pread(file.fileno(), 32, 0))
    return int(found[1]) if found else None


def _decompressed(path: Path, kind: Format, first: int) -> bytes:
    """The lines of a compressed file; `first` is the number of its first line."""
    with open_regular(path, "r") as file, gzip.open(file) as compressed:
        try:
            return compressed.read(LINE_MAX_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise kind.damaged(path, first, f"{error}".lower(), first) from None


def _segments(path: Path) -> list[tuple[int, Path]]:
    """The number of the first line of every segment, and its file."""
    return [(int(file.name[:12]), file) for file in sorted(path.with_suffix("").glob(_SEGMENT))]


def _begins(number: int) -> bytes:
    return b'{"line":%d,"crc32":' % number


def _line(number: int, checksum: int, fields: bytes) -> bytes:
    return b"%b%d,%b}\n" % (_begins(number), checksum, fields)


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
