"""The trace of a run: built in memory, or from the run's files in pieces.

A piece is the trace of a range of steps; calls depend only on calls of the same step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np

from metropolis.rules.metrics import Hops
from metropolis.runtime.folder.calls_file import Call
from metropolis.trace.joining import joined
from metropolis.trace.schema import Calls, Float32, Trace, TraceMeta, ValueDependencies
from metropolis.trace.validate import LIMIT
from metropolis.types import AgentId, Step
from metropolis.world.base import World

PIECE_ROWS = 50_000
"""Agent-steps per piece; a piece has at least one step."""
PIECE_CALLS = 4_000
StepParts = tuple[Float32, list[Call]]
"""Positions at the beginning of a step, (agents, 2), and the step's calls."""
StepsFrom = Callable[[Step], Iterator[StepParts]]
"""Yields the parts of all steps from the given one on."""


@dataclass(frozen=True, eq=False)  # arrays are not equal or unequal as a whole
class RunTrace:
    """The trace of a run with `steps` steps."""

    meta: TraceMeta
    steps: Step
    steps_from: StepsFrom
    dependencies: ValueDependencies | None = None
    """Dependencies by value; None if they are not known for all steps."""

    def pieces(self) -> Iterator[Trace]:
        """The trace of all steps in pieces, in order."""
        first = 0
        for piece in self._pieces(0):
            yield replace(piece, dependencies=self._rows(first, first + piece.steps))
            first += piece.steps

    def assemble(self) -> Trace:
        """Return all steps as one trace."""
        return replace(self._joined([*self._pieces(0)]), dependencies=self.dependencies)

    def _pieces(self, first: Step) -> Iterator[Trace]:
        """The steps from `first` on in pieces, without dependencies."""
        parts: list[StepParts] = []
        calls = 0
        for step, part in enumerate(self.steps_from(first), first + 1):
            parts.append(part)
            calls += len(part[1])
            is_full = len(parts) * len(self.meta.agents) >= PIECE_ROWS or calls >= PIECE_CALLS
            if is_full or step == self.steps:
                yield trace_of(self.meta, parts)
                parts, calls = [], 0

    def _joined(self, pieces: Sequence[Trace]) -> Trace:
        return joined(pieces or [trace_of(self.meta, [])])  # a run may end before its first step

    def _rows(self, first: Step, last: Step) -> ValueDependencies | None:
        """The dependencies of the steps [first, last), also those on earlier steps."""
        if self.dependencies is None:
            return None
        return self.dependencies.rows(first * len(self.meta.agents), last * len(self.meta.agents))

    def last(self, rows_max: int, calls_max: int) -> tuple[Step, Trace]:
        """The last steps within both limits, after the first of these steps.

        At least one step; all steps if they fit.
        """
        agents = len(self.meta.agents)
        pieces: deque[Trace] = deque()  # columns take a tenth of the memory of the calls as objects
        calls = 0
        for piece in self._pieces(max(0, self.steps - max(1, rows_max // agents))):
            pieces.append(piece)
            calls += len(piece.calls)
            while calls - len(pieces[0].calls) >= calls_max and len(pieces) > 1:
                calls -= len(pieces.popleft().calls)
        found = self._joined(pieces)
        too_many = calls - calls_max
        cut = 0 if too_many <= 0 else min(int(found.calls.step[too_many - 1]) + 1, found.steps - 1)
        found = found.window(cut, found.steps)
        first = self.steps - found.steps
        start = self.meta.start + timedelta(seconds=first * self.meta.step_s)
        known = self.dependencies and self.dependencies.window(first, self.steps, agents)
        return first, replace(found, meta=replace(self.meta, start=start), dependencies=known)


def trace_of(meta: TraceMeta, parts: Sequence[StepParts]) -> Trace:
    """The trace of consecutive steps, for replays in any mode and on any hardware.

    Failed calls are omitted: their dependents inherit their dependencies.
    """
    steps = [step for step, (_, of) in enumerate(parts) for _ in of]
    agents = [agent for _, of in parts for _, agent, _ in of]
    calls = [call for _, of in parts for _, _, call in of]
    functions = sorted({call.function for call in calls})
    models = sorted({call.model for call in calls})
    first: dict[tuple[Step, AgentId], int] = {}
    for index, agent_step in enumerate(zip(steps, agents, strict=True)):
        first.setdefault(agent_step, index)
    parents = [
        sorted(first[step, agent] + number for agent, number in call.parents)
        for step, call in zip(steps, calls, strict=True)
    ]

    def column(values: list[int]) -> Any:
        return np.array(values, np.int32)

    count = len(calls)
    texts = any(call.prompt is not None for call in calls)
    all_calls = Calls(
        step=column(steps),
        agent=column(agents),
        function=column([functions.index(call.function) for call in calls]),
        functions=tuple(functions),
        model=column([models.index(call.model) for call in calls]),
        models=tuple(models),
        # even an empty answer takes an iteration
        prompt_tokens=column([max(1, call.prompt_tokens) for call in calls]),
        output_tokens=column([max(1, call.output_tokens) for call in calls]),
        prefix_id=np.full(count, -1, np.int64),
        prefix_tokens=np.zeros(count, np.int32),
        parent_offsets=np.cumsum([0, *map(len, parents)]).astype(np.int64),
        parents=np.array([parent for of in parents for parent in of], np.int64),
        prompt=[call.prompt for call in calls] if texts else None,
        completion=[call.completion for call in calls] if texts else None,
    )
    return Trace(
        meta,
        np.array([at for at, _ in parts], np.float32).reshape(-1, len(meta.agents), 2),
        all_calls.keep(np.array([not call.failed for call in calls], np.bool_)),
    )


def trace_meta(world: World, names: Sequence[str], calls_origin: str = "recorded") -> TraceMeta:
    """The metadata of the trace of a world."""
    joint = world.joint_radius  # negative and 0 couple the same agents
    return TraceMeta(
        name=world.name,
        agents=tuple(names),
        perception_radius=min(world.perception_radius, LIMIT),
        max_velocity=min(world.max_velocity, LIMIT),
        joint_radius=None if joint is None else min(max(joint, 0), LIMIT),
        metric=world.metric.name,
        step_s=world.step_s,
        start=world.start,
        map=world.map,
        graph=world.metric.neighbours if isinstance(world.metric, Hops) else None,
        calls_origin=calls_origin,
        source="a run of metropolis",
    )
