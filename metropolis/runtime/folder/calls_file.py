"""The calls of a run as a file: one JSON line per call, in the order of steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path

import msgspec

from metropolis.durable import DamagedError
from metropolis.line_file import Format, Line, Mark, read_lines, with_content
from metropolis.llm.call_log import CallRecord
from metropolis.runtime.folder.continued_file import ContinuedFile
from metropolis.runtime.folder.history import HISTORY
from metropolis.types import AgentId, MetropolisError, Step

Call = tuple[Step, AgentId, CallRecord]
CALLS = Format("metropolis calls", 1, HISTORY.repair)
_decode = msgspec.json.Decoder(Call).decode


@dataclass
class CallTotals:
    """Answered calls and their tokens."""

    calls: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass
class Tally:
    """Totals of all calls of a run so far."""

    lines: int = 0
    """Number of lines: of calls, including failed ones."""
    by_function: defaultdict[str, CallTotals] = field(
        default_factory=lambda: defaultdict(CallTotals)
    )

    @property
    def total(self) -> CallTotals:
        """The totals of all functions."""
        of = self.by_function.values()
        return CallTotals(
            sum(totals.calls for totals in of),
            sum(totals.prompt_tokens for totals in of),
            sum(totals.output_tokens for totals in of),
        )

    def add(self, call: CallRecord) -> None:
        """Add a call."""
        self.lines += 1
        if not call.failed:
            totals = self.by_function[call.function]
            totals.calls += 1
            totals.prompt_tokens += call.prompt_tokens
            totals.output_tokens += call.output_tokens


class CallsFile(ContinuedFile):
    """The calls of a run, in a file of `run` if `path` is given.

    An existing file is continued after its first `keep` calls; later ones are cut off as by
    HistoryWriter. Raises MetropolisError if the calls to keep are damaged.
    """

    def __init__(self, path: Path | None = None, keep: int = 0, run: str | None = None) -> None:
        super().__init__(path, CALLS, run)
        self.tally = Tally()
        if path is not None:
            lines = self._lines()
            for line in islice(lines, keep):
                self.tally.add(_call_in(line)[2])
                self._kept = line
            if self.tally.lines < keep:
                raise too_few(path, self.tally.lines, keep)
            with suppress(DamagedError):
                if next(lines, None) is not None:
                    return
            self._cut()

    def append(self, calls: Sequence[Call]) -> None:
        """The calls of the next step, by agent."""
        self._cut()
        for _, _, call in calls:
            self.tally.add(call)
        if calls:
            self._write(with_content(msgspec.json.encode(call)) for call in calls)


def read_calls(path: Path, count: int, run: str | None = None) -> Iterator[tuple[Mark, Call]]:
    """The first `count` calls. Raises MetropolisError if they are damaged or too few."""
    found = 0
    for line in islice(read_lines(path, CALLS, run), count):
        found += 1
        yield line.mark, _call_in(line)
    if found < count:
        raise too_few(path, found, count)


def calls_by_step(path: Path, run: str | None = None) -> Iterator[tuple[Step, list[Call]]]:
    """The calls by step, of steps that have any. Raises MetropolisError if they are damaged."""
    calls = map(_call_in, read_lines(path, CALLS, run))
    for step, of in groupby(calls, key=lambda call: call[0]):
        yield step, list(of)


def _call_in(line: Line) -> Call:
    return CALLS.decoded(line, _decode)


def too_few(path: Path, found: int, count: int) -> MetropolisError:
    """The error for a truncated file."""
    return CALLS.damaged(path, found + 2, f"it ends after {found} of {count} calls")
