"""Prompt and answer of one call, from a run's file of calls or from a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

import msgspec

from metropolis.durable import RESTORE, DamagedError
from metropolis.line_file import texts_of_lines
from metropolis.llm.call_log import CallRecord
from metropolis.runtime.folder.calls_file import CALLS, Call
from metropolis.trace.schema import Trace
from metropolis.types import AgentId, Step

NOT_KEPT = "The texts of calls were not kept; `metropolis run --keep-text` keeps them."
NOT_RECORDED = "The call is not recorded yet: a step is recorded when all agents have passed it."
REPEATED = "The call was repeated or discarded, and its texts with it."
Text = dict[str, str | None]
"""`prompt`, `completion` (None: unknown) and `note` (why, or None)."""


class _Line(msgspec.Struct):
    call: Call = msgspec.field(name="is")


_decode = msgspec.json.Decoder(_Line).decode


class CallTexts(Protocol):
    """Texts of calls."""

    def text(self, step: Step, agent: AgentId, number: int) -> Text:
        """The text of an agent's call, the `number`th of a step."""

    def recorded(self) -> Iterator[tuple[tuple[Step, AgentId, int], Text]]:
        """Every call that is recorded, by step, and its text."""


class RecordedTexts:
    """Texts of the calls in the file `path`; `calls`: their number up to and with each step."""

    def __init__(self, path: Path, calls: Sequence[int]) -> None:
        self._path, self._calls = path, calls

    def text(self, step: Step, agent: AgentId, number: int) -> Text:
        """See `CallTexts`. Raises DamagedError."""
        if number < 0:
            return _unknown(REPEATED)
        if step >= len(self._calls):
            return _unknown(NOT_RECORDED)
        first = self._calls[step - 1] if step else 0
        lines = texts_of_lines(self._path, CALLS, 2 + first)  # after the header
        of_agent = [
            call for _, whose, call in self._read(lines, first, self._calls[step]) if whose == agent
        ]
        if number >= len(of_agent):
            return _unknown(REPEATED)
        return _text(of_agent[number])

    def recorded(self) -> Iterator[tuple[tuple[Step, AgentId, int], Text]]:
        """See `CallTexts`. Raises DamagedError."""
        lines, first = texts_of_lines(self._path, CALLS, 2), 0
        for step, end in enumerate(self._calls):
            numbers = Counter[AgentId]()
            for _, agent, call in self._read(lines, first, end):
                yield (step, agent, numbers[agent]), _text(call)
                numbers[agent] += 1
            first = end

    def _read(self, lines: Iterator[bytes], first: int, end: int) -> list[Call]:
        """The next calls of `lines`, `first` to `end`."""
        try:
            found = [_decode(text).call for text in islice(lines, end - first)]
        except (OSError, ValueError) as error:
            raise DamagedError(
                f"{self._path}: cannot be read: {error}", RESTORE, self._path
            ) from None
        if len(found) < end - first:
            raise CALLS.damaged(self._path, 2 + first + len(found), "it ends here")
        return found


class TraceTexts:
    """Texts of the calls of a trace."""

    def __init__(self, trace: Trace) -> None:
        self._calls, self._offsets, self._agents = trace.calls, trace.call_offsets(), trace.agents

    def text(self, step: Step, agent: AgentId, number: int) -> Text:
        """See `CallTexts`."""
        prompts, completions = self._calls.prompt, self._calls.completion
        if prompts is None or completions is None:
            return _unknown("The trace has no texts of calls.")
        at = int(self._offsets[step * self._agents + agent]) + number
        return {"prompt": prompts[at], "completion": completions[at], "note": None}

    def recorded(self) -> Iterator[tuple[tuple[Step, AgentId, int], Text]]:
        """See `CallTexts`."""
        steps, agents = self._calls.step.tolist(), self._calls.agent.tolist()
        for at, (step, agent) in enumerate(zip(steps, agents, strict=True)):
            key = step, agent, at - int(self._offsets[step * self._agents + agent])
            yield key, self.text(*key)


def _text(call: CallRecord) -> Text:
    if call.prompt is None and call.completion is None:
        return _unknown(NOT_KEPT)
    note = "The call failed." if call.failed else None
    return {"prompt": call.prompt, "completion": call.completion, "note": note}


def _unknown(note: str) -> Text:
    return {"prompt": None, "completion": None, "note": note}
