"""Checkpoints of a run in progress.

A checkpoint of step F is planned before any agent has reached F. Each agent's mind is saved when
the agent commits step F - 1; the world is read when the floor reaches F (versions make that exact).
So all agents are at the same step, and a run resumed there equals a run begun there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from metropolis.runtime.folder.checkpoint import Checkpoint, Checkpoints, Past
from metropolis.runtime.live.executor import Executor
from metropolis.types import Step


class Checkpointer:
    """Writes a checkpoint every `every_wall_s`, and one of the last step."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        names: Sequence[str],
        executor: Executor,
        last_step: Step,
        every_wall_s: float,
    ) -> None:
        self._checkpoints, self._names, self._executor = checkpoints, names, executor
        self._last, self._every_wall_s = last_step, every_wall_s
        self._due_wall_s = time.monotonic() + every_wall_s
        self._ahead = 1
        self.step = last_step
        """The step of the next checkpoint."""

    def plan(self, newest_step: Step) -> None:
        """If a checkpoint is due, plan it for a step that no agent has reached.

        `newest_step` is the greatest step known to be reached; agents elsewhere may be further
        ahead.
        """
        aim = newest_step + self._ahead
        if self.step < self._last or aim >= self._last or time.monotonic() < self._due_wall_s:
            return
        if self._executor.keep_minds(aim):
            self.step, self._ahead = aim, 1
        else:
            self._ahead *= 2

    def write(self, past: Past, now_s: float) -> None:
        """Write the checkpoint of `step`, now the floor; `now_s` is the run's clock."""
        entities, events = self._executor.world(self.step)
        at_last = self.step == self._last  # then no agent is running
        minds = self._executor.minds() if at_last else self._executor.kept_minds()
        self._executor.check_lease()
        agents = {name: minds[number] for number, name in enumerate(self._names)}
        self._checkpoints.add(Checkpoint(self.step, entities, events, agents, now_s, past))
        self.step = self._last
        self._due_wall_s = time.monotonic() + self._every_wall_s
