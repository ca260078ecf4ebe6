"""A file of lines that a resumed run continues, after the lines that it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from metropolis.line_file import Format, Line, LineFile, Mark


class ContinuedFile:
    """The base class of such files.

    No line is removed before `_cut` is called. Without `path` nothing is written.
    """

    def __init__(self, path: Path | None, kind: Format, run: str | None) -> None:
        self._file = None if path is None else LineFile(path, kind, run)
        self._kept: Line | None = None
        """The last line to keep; None: only the first line, which gives the format of the file."""
        self._is_cut = False

    def _lines(self) -> Iterator[Line]:
        """See `LineFile.read`."""
        return iter(()) if self._file is None else self._file.read()

    def _cut(self) -> None:
        """Remove the lines after the last one to keep, if they have not been removed yet."""
        if self._file is not None and not self._is_cut:
            self._file.cut(self._kept)
            self._is_cut = True

    def _write(self, lines: Iterable[bytes]) -> None:
        """See `LineFile.append`."""
        if self._file is not None:
            self._file.append(lines)

    @property
    def mark(self) -> Mark:
        """The end of the file."""
        return Mark(0, 0) if self._file is None else self._file.mark

    def sync(self) -> None:
        """Make the lines survive a power cut."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
