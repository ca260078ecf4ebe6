"""The journal: answers already paid for, so that a crash costs nothing twice.

A file of lines (`metropolis.line_file`), one per answer, or per attempt without a usable answer,
which may have cost as much. A line is written with one system call
before the agent sees the answer, so a killed process loses only answers that no agent has seen.
A torn last line is dropped when the file is reopened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from metropolis.line_file import Format, Line, LineFile, Mark, read_lines, with_content
from metropolis.llm.base import Completion, Request
from metropolis.llm.usage import Tokens
from metropolis.types import MetropolisError, Step

JOURNAL = Format(
    "metropolis journal",
    3,
    "the {intact} lines before it are intact; to continue without the answers after them, which "
    "are bought again, keep only these (head -n {intact}) and no later file of the journal",
)

DIGEST_CHARACTERS = 32
"""128 bits: digests do not compress, and make up half of a compressed journal."""


class Key(msgspec.Struct, frozen=True):
    """Identifies a call across runs; `occurrence` as in Request, `digest` its beginning."""

    agent: int
    step: int
    function: str
    digest: str
    occurrence: int


class _Line(msgspec.Struct):
    key: Key
    completion: Completion


class _LostLine(msgspec.Struct):
    lost: Tokens


_LOST = b'{"lost":'
_decode = msgspec.json.Decoder(_Line).decode
_decode_lost = msgspec.json.Decoder(_LostLine).decode


def key_of(request: Request) -> Key:
    """The key of `request`."""
    digest = request.digest[:DIGEST_CHARACTERS]
    return Key(request.agent, request.step, request.function, digest, request.occurrence)


def read_journal(
    path: Path, run: str | None = None, reaches: Mark | None = None
) -> Iterator[tuple[Key, Completion]]:
    """The answers in the order of arrival; of several to the same key the last one counts.

    Arguments and errors are those of `Journal`, except that the file may be in use.
    """
    for line in _reaching(path, read_lines(path, JOURNAL, run), reaches):
        if isinstance(read := _read(line), _Line):
            yield read.key, read.completion


def _reaching(path: Path, lines: Iterable[Line], reaches: Mark | None) -> Iterator[Line]:
    """Yield `lines`; raises MetropolisError if they end before `reaches` or differ there."""
    found = 0
    for line in lines:
        found = line.mark.lines
        if reaches is not None and reaches.lines == found and reaches != line.mark:
            raise JOURNAL.damaged(
                line.file, found + 1, "a checkpoint lists other lines", line.first
            )
        yield line
    if reaches is not None and found < reaches.lines:
        raise MetropolisError(
            f"{path}: ends after {found} lines, but a checkpoint of the run lists "
            f"{reaches.lines}; restore the file, or remove the newest checkpoints to buy the "
            "missing answers again"
        )


def _read(line: Line) -> _Line | _LostLine:
    if line.content.startswith(_LOST):
        return JOURNAL.decoded(line, _decode_lost)
    return JOURNAL.decoded(line, _decode)


class Answers(Protocol):
    """Stores answers and looks them up: a `metropolis.llm.journal.Journal`, or a store's."""

    @property
    def lost(self) -> Tokens:
        """The most that attempts without a usable answer took."""

    def get(self, key: Key) -> Completion | None:
        """The answer already paid for, or None."""

    def answers(self) -> Iterable[Completion]:
        """All answers."""

    def put(self, key: Key, completion: Completion) -> Awaitable[None] | None:
        """Store an answer; the returned awaitable ends when it is stored. None: it is stored."""

    def lose(self, tokens: Tokens) -> None:
        """Add the most that an attempt without a usable answer took to `lost`."""

    def flush(self) -> None:
        """Make stored answers survive a power cut."""

    def close(self) -> None:
        """Close; nothing is stored afterwards."""


class JournalFront:
    """The base of answers in memory in front of a `journal`, which has all of them; see Answers."""

    def __init__(self, journal: Answers | None) -> None:
        """With None, only the answers in memory exist."""
        self._journal = journal

    def get(self, key: Key) -> Completion | None:
        """See Answers."""
        return None if self._journal is None else self._journal.get(key)

    def answers(self) -> Iterable[Completion]:
        """See Answers."""
        return () if self._journal is None else self._journal.answers()

    @property
    def lost(self) -> Tokens:
        """See Answers; zero without a journal."""
        return Tokens() if self._journal is None else self._journal.lost

    def lose(self, tokens: Tokens) -> None:
        """See Answers."""
        if self._journal is not None:
            self._journal.lose(tokens)

    def flush(self) -> None:
        """See Answers."""
        if self._journal is not None:
            self._journal.flush()

    def close(self) -> None:
        """See Answers."""
        if self._journal is not None:
            self._journal.close()


class Journal:
    """The answers of one run, by key; reopened, it holds the earlier answers.

    Args:
        path: the file, created if missing.
        run: the run that the answers belong to; None: any run.
        since: the first step whose answers are loaded; earlier ones stay in the file.
        reaches: a mark that the file must contain.

    Raises MetropolisError on a file that is damaged, of another format or run, or in use. Lines
    survive a crash of the process at once, and a power cut after `flush`.
    """

    def __init__(
        self,
        path: str | Path,
        run: str | None = None,
        *,
        since: Step = 0,
        reaches: Mark | None = None,
    ) -> None:
        self.path = Path(path)
        self._file = LineFile(self.path, JOURNAL, run, exclusive=True)
        try:
            self._answers: dict[Step, dict[Key, Completion]] = {}
            self.lost = Tokens()
            last = None
            for last in _reaching(self.path, self._file.read(), reaches):
                read = _read(last)
                if isinstance(read, _LostLine):
                    self._add_lost(read.lost)
                elif read.key.step >= since:
                    self._answers.setdefault(read.key.step, {})[read.key] = read.completion
            self._file.cut(last)
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        return sum(map(len, self._answers.values()))

    @property
    def mark(self) -> Mark:
        """The end of the file."""
        return self._file.mark

    def get(self, key: Key) -> Completion | None:
        """The answer already paid for, or None."""
        return self._answers.get(key.step, {}).get(key)

    def answers(self) -> Iterable[Completion]:
        """All answers, read from the file."""
        return (completion for _, completion in read_journal(self.path))

    def unload_before(self, step: Step) -> None:
        """Unload answers below `step`, which are no longer needed; they stay in the file."""
        for below in [known for known in self._answers if known < step]:
            del self._answers[below]

    def put(self, key: Key, completion: Completion) -> None:
        """Write the answer; a second answer to the same key replaces the first.

        Raises UnwritableError when it cannot be written.
        """
        self._file.append([with_content(msgspec.json.encode(_Line(key, completion)))])
        self._answers.setdefault(key.step, {})[key] = completion

    def lose(self, tokens: Tokens) -> None:
        """See Answers. Raises UnwritableError when it cannot be written."""
        self._file.append([with_content(msgspec.json.encode(_LostLine(tokens)))])
        self._add_lost(tokens)

    def _add_lost(self, tokens: Tokens) -> None:
        self.lost = Tokens(self.lost.prompt + tokens.prompt, self.lost.output + tokens.output)

    def flush(self) -> None:
        """Make written answers survive a power cut."""
        self._file.sync()

    def close(self) -> None:
        """Flush and close the file."""
        self.flush()
        self._file.close()
