"""Positions of a trace, and what agents show if the trace knows it, for the lanes of replays."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from metropolis.trace.schema import Trace
from metropolis.trace.shown import Lines, window
from metropolis.types import Step
from metropolis.viewer.data.chunks import check_number, chunk_steps, count_of, json_bytes
from metropolis.viewer.data.history_steps import DOES, Moment
from metropolis.world.appearance import SAYS


class TraceSteps:
    """The steps of `trace`; see `Steps`."""

    damage: str | None = None

    def __init__(self, trace: Trace) -> None:
        self._positions = trace.positions
        self._shown = trace.shown or ()
        self._ids = {name: agent for agent, name in enumerate(trace.meta.agents)}
        self._chunk_steps = chunk_steps(trace.agents)
        self.steps = trace.steps
        self.chunks = max(1, count_of(trace.steps, self._chunk_steps))

    def refresh(self) -> set[int]:
        """A trace does not grow."""
        return set()

    def positions(self, number: int) -> bytes:
        """See `Steps`."""
        check_number(number, self.chunks, "steps")
        first = number * self._chunk_steps
        return self._positions[first : first + self._chunk_steps + 1].tobytes()

    def moments(self, number: int) -> bytes:
        """See `Steps`. A change at the beginning of a step is a moment of the step before."""
        check_number(number, self.chunks, "steps")
        first = number * self._chunk_steps
        here = window(self._shown, first, first + self._chunk_steps + 1)
        before = {change.agent: change for change in here if change.step == 0}
        now = {f"{agent}": msgspec.to_builtins(change.look) for agent, change in before.items()}
        moments: list[Moment] = []
        told: set[tuple[Step, Lines]] = set()
        for change in here[len(before) :]:
            last, step = before.get(change.agent), first + change.step - 1
            before[change.agent] = change
            if last is None or last.look != change.look:
                extra = msgspec.to_builtins(change.look)
                label = extra.pop("label", "")
                moments.append([step, change.agent, DOES, label, extra or None])
            known = last is not None and last.lines == change.lines
            if change.lines and not known and (step, change.lines) not in told:
                told.add((step, change.lines))  # all who take part show it
                moments += self._said(step, change.lines)
        moments.sort(key=lambda moment: (moment[0], moment[2] == SAYS))
        return json_bytes({"now": now, "moments": moments})

    def _said(self, step: Step, lines: Lines) -> Iterator[Moment]:
        speakers = {self._ids[name] for name, _ in lines if name in self._ids}
        for name, text in lines:
            if (agent := self._ids.get(name)) is not None:
                yield [step, agent, SAYS, text, {"to": sorted(speakers - {agent})}]
