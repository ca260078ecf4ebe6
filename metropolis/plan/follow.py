"""The dynamic scheduler of the running phase (SamuLLM §4.3).

When a model finishes, or the stage's boundary is reached, the next stage begins. If those that the
schedule lets finish have finished, and no others, it is as planned. Otherwise

1. A running model with the same plan in the next stage goes on, as does one in none of the stages
   to come.
2. The other models of the next stage start where they fit, in its order.
3. A running model outside the next stage goes on if its GPUs are still free; else it is stopped.

A model of the next stage that does not fit waits for the next to finish, and so do later stages. A
stage that starts nothing, because models of it have already finished, is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from metropolis.plan.timeline import Boundary, PlannedStage, Stage


class Follower:
    """Chooses what runs, by a schedule and by what has finished."""

    def __init__(self, stages: Sequence[PlannedStage], fits: Callable[[Stage], bool]) -> None:
        """`fits`: whether these models can run now, on the GPUs and by their needs."""
        self._stages, self._fits = stages, fits
        self._next = 0
        """The index of the stage that begins next."""
        self._is_waiting = False
        """Whether a model of the stage before has not started."""
        self._is_over = False
        self._current: Stage = {}

    @property
    def planned(self) -> PlannedStage | None:
        """The current stage as planned; None after the last one."""
        return None if self._is_over else self._stages[self._next - 1]

    @property
    def boundary(self) -> Boundary | None:
        """The boundary of the current stage."""
        return None if self.planned is None else self.planned.boundary

    def next_stage(self, unfinished: Collection[str], running: Stage) -> Stage:
        """What runs from now on; call it at the start, and whenever a node has finished or the
        boundary is reached."""
        self._current = self._chosen(unfinished, running)
        return self._current

    def _chosen(self, unfinished: Collection[str], running: Stage) -> Stage:
        if self._is_as_planned(unfinished):
            self._next += 1
            return self._stages[self._next - 1].plans
        running = {name: plan for name, plan in running.items() if name in unfinished}
        index = self._next - self._is_waiting
        while index < len(self._stages):
            planned = self._stages[index].plans
            stage, self._is_waiting = self._begun(index, unfinished, running)
            self._next = index = index + 1
            starts = any(running.get(name) != plan for name, plan in stage.items())
            is_whole = all(name in unfinished for name in planned)
            if stage and (starts or self._is_waiting or is_whole):
                return stage
        self._is_over = True
        return self._rest(unfinished, running)

    def _is_as_planned(self, unfinished: Collection[str]) -> bool:
        """Whether the schedule has been followed to the end of the current stage."""
        index = self._next
        if self._is_waiting or index == len(self._stages):
            return False
        planned = self._stages[index].plans
        before = self._stages[index - 1].plans if index else {}
        later = {name for stage in self._stages[index:] for name in stage.plans}
        return (
            self._current == before
            and all((name in unfinished) == (name in later) for name in before)
            and all(name in unfinished for name in planned)
            and self._fits(planned)
        )

    def _begun(self, index: int, unfinished: Collection[str], running: Stage) -> tuple[Stage, bool]:
        planned = self._stages[index].plans
        wanted = {name: plan for name, plan in planned.items() if name in unfinished}
        later = {name for stage in self._stages[index:] for name in stage.plans}
        continuing = {
            name: plan
            for name, plan in running.items()
            if wanted.get(name) == plan or name not in later
        }
        stage = self._with(self._with({}, continuing), wanted)
        is_waiting = any(stage.get(name) != plan for name, plan in wanted.items())
        return self._with(stage, running), is_waiting

    def _with(self, stage: Stage, others: Stage) -> Stage:
        """`stage` and those of the others that fit, in their order, but each after its needs."""
        for name, plan in others.items():
            if name not in stage and self._fits(larger := {**stage, name: plan}):
                return self._with(larger, others)
        return stage

    def _rest(self, unfinished: Collection[str], running: Stage) -> Stage:
        """After the last stage: what runs goes on, and the others follow with their last plans."""
        last = {name: plan for stage in self._stages for name, plan in stage.plans.items()}
        rest = {name: plan for name, plan in last.items() if name in unfinished}
        return self._with(running, rest)
