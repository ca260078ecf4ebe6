"""The journal: answers already paid for, kept so that no crash makes anybody pay again.

Append-only lines of JSON: a header, then one line per answer. A line is written with one system
call before the agent sees the answer, so a process that is killed loses at most the answers it
never had. A torn last line is dropped when the file is opened again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from io import FileIO
from pathlib import Path

import msgspec

from metropolis.llm.base import Completion, Request
from metropolis.types import MetropolisError

HEADER = b'{"format":"metropolis journal","version":1}\n'


class Key(msgspec.Struct, frozen=True):
    """What identifies a call across runs; `digest` and `occurrence` as in Request."""

    agent: int
    step: int
    function: str
    digest: str
    occurrence: int


class _Line(msgspec.Struct):
    key: Key
    completion: Completion


_decode = msgspec.json.Decoder(_Line).decode


def key_of(request: Request) -> Key:
    """The key of `request`."""
    return Key(request.agent, request.step, request.function, request.digest, request.occurrence)


def read_journal(path: Path) -> tuple[dict[Key, Completion], int]:
    """The answers in the file, and how many of its bytes hold whole lines.

    Raises MetropolisError on a file of another format and on a broken line that is not the last.
    """
    content = path.read_bytes()
    if not content.startswith(HEADER) and not HEADER.startswith(content):
        raise MetropolisError(
            f"{path} is no journal of LLM answers, or its beginning is damaged: its first line "
            f"should be {HEADER.decode().strip()}"
        )
    whole = content.rfind(b"\n") + 1
    answers: dict[Key, Completion] = {}
    for number, line in enumerate(content[len(HEADER) : whole].split(b"\n")[:-1], start=2):
        try:
            read = _decode(line)
        except msgspec.DecodeError as error:
            raise MetropolisError(
                f"{path}, line {number}: not a journal's line: {error}; the lines before it are "
                "whole: cut the file there to go on"
            ) from None
        answers[read.key] = read.completion
    return answers, whole


class Journal:
    """The answers of one run, by key; opened again, it knows what it has been given before.

    Raises MetropolisError on a file of another format and when the file is in use. `path` is
    created if need be. Lines survive the process at once, a power cut after `flush`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = self.path.open("ab", buffering=0)
        try:
            _lock(self._file, self.path)
            self._answers, whole = read_journal(self.path)
            self._file.truncate(whole)
            if not whole:
                self._write(HEADER)
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: Key) -> Completion | None:
        """The answer already paid for; None when there is none."""
        return self._answers.get(key)

    def answers(self) -> Iterable[Completion]:
        """All answers."""
        return self._answers.values()

    def put(self, key: Key, completion: Completion) -> None:
        """Write the answer down; a second answer to the same key replaces the first."""
        self._write(msgspec.json.encode(_Line(key, completion)) + b"\n")
        self._answers[key] = completion

    def flush(self) -> None:
        """Let what is written survive a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush and close the file."""
        self.flush()
        self._file.close()

    def _write(self, line: bytes) -> None:
        written = self._file.write(line)
        if written < len(line):  # the disk is full
            self._file.truncate(os.fstat(self._file.fileno()).st_size - written)
            raise OSError(f"{self.path}: only {written} of {len(line)} bytes could be written")


def _lock(file: FileIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise MetropolisError(f"{path} is in use by another run; wait for it to end") from None
