"""Positions of a trace, for the lanes of replays: what agents do and say is not in it."""

from __future__ import annotations

from metropolis.trace.schema import Trace
from metropolis.viewer.data.chunks import NoChunkError, chunk_steps, count_of, json_bytes


class TraceSteps:
    """The steps of `trace`; see `Steps`."""

    damage: str | None = None

    def __init__(self, trace: Trace) -> None:
        self._positions = trace.positions
        self._chunk_steps = chunk_steps(trace.agents)
        self.steps = trace.steps
        self.chunks = max(1, count_of(trace.steps, self._chunk_steps))

    def refresh(self) -> set[int]:
        """A trace does not grow."""
        return set()

    def positions(self, number: int) -> bytes:
        """See `Steps`."""
        self._check(number)
        first = number * self._chunk_steps
        return self._positions[first : first + self._chunk_steps].tobytes()

    def moments(self, number: int) -> bytes:
        """See `Steps`."""
        self._check(number)
        return json_bytes({"now": {}, "moments": []})

    def _check(self, number: int) -> None:
        if not 0 <= number < self.chunks:
            raise NoChunkError(f"there are {self.chunks} chunks of steps, and no chunk {number}")
