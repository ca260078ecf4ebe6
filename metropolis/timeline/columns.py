"""A timeline in memory: columns of executions and calls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from metropolis.timeline.format import Meta
from metropolis.types import MetropolisError, Step

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]
NONE = -1
"""No agent or instance, where it is null in the file."""


@dataclass(frozen=True)
class Executions:
    """(n,) columns, one row per agent-step, by step and agent; NaN and `NONE` stand for null."""

    step: Int32
    agent: Int32
    dispatched_s: Float64
    committed_s: Float64
    dispatched_wall_s: Float64
    committed_wall_s: Float64
    blocked_by: Int32
    cluster: Int32
    wasted: Int32

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class Calls:
    """(n,) columns, one row per call, by step, agent and number; NaN and `NONE` stand for null."""

    step: Int32
    agent: Int32
    number: Int32
    function: Int32
    """Index into `functions`."""
    model: Int32
    """Index into `models`."""
    instance: Int32
    sent_s: Float64
    started_s: Float64
    completed_s: Float64
    prompt_tokens: Int32
    output_tokens: Int32
    failed: Bool
    wasted: Bool
    functions: tuple[str, ...]
    models: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class Timeline:
    """What happened when; see docs/timeline-format.md."""

    meta: Meta
    executions: Executions
    calls: Calls
    damage: str | None = None
    """A sentence, if a file that it was read from is missing, incomplete or damaged."""

    def check_agents(self, count: int, folder: Path) -> None:
        """Raise MetropolisError unless it is of `count` agents, as the other files of `folder`."""
        if self.meta.agents != count:
            raise MetropolisError(
                f"{folder}: is of {self.meta.agents} agents, and the folder of {count}; restore "
                "the timeline of this run"
            )

    def before(self, step: Step, meta: Meta) -> Timeline:
        """The part below `step`, with other metadata."""
        executions, calls = self.executions, self.calls
        return Timeline(
            meta, _rows(executions, executions.step < step), _rows(calls, calls.step < step)
        )

    def begun(self) -> Timeline:
        """This timeline without the agent-steps that wait and have not begun."""
        is_begun = ~np.isnan(self.executions.dispatched_s)
        return replace(self, executions=_rows(self.executions, is_begun))

    @property
    def steps(self) -> int:
        """One more than the greatest step that an agent has begun."""
        return int(self.executions.step.max(initial=-1)) + 1

    @property
    def makespan_s(self) -> float:
        """The time of the last commit; 0 without any."""
        return float(np.nanmax(self.executions.committed_s, initial=0.0))

    def dense(self, column: str) -> npt.NDArray[Any]:
        """(steps, agents): a column of the executions; NaN or `NONE` without a row."""
        values: npt.NDArray[Any] = getattr(self.executions, column)
        missing = np.nan if values.dtype.kind == "f" else NONE
        table = np.full((self.steps, self.meta.agents), missing, values.dtype)
        table[self.executions.step, self.executions.agent] = values
        return table

    def steps_at(self, now_s: float) -> Int32:
        """(agents,): the step that each agent has still to commit at `now_s`.

        The smallest is the floor; an agent's lead is its step less the floor.
        """
        committed = self.executions.committed_s <= now_s
        first = int(self.executions.step.min(initial=0))
        found = np.full(self.meta.agents, first, np.int32)
        np.maximum.at(found, self.executions.agent[committed], self.executions.step[committed] + 1)
        return found


Columns = TypeVar("Columns", Executions, Calls)


def _rows(of: Columns, are_kept: Bool) -> Columns:
    """The rows for which `are_kept`, (n,), holds."""
    kept: dict[str, Any] = {
        name: values[are_kept]
        for name, values in vars(of).items()
        if isinstance(values, np.ndarray)
    }
    return replace(of, **kept)
