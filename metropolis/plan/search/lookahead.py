"""A search that looks ahead: changes of one stage, judged by how the application then ends.

SamuLLM's greedy search judges a stage by its throughput. Here a first schedule is the best of
several methods, each followed to the end (rollouts). Then each of its stages in turn is changed in
one respect: another plan for a model, a model more or less, two models' GPUs exchanged, or the
stage that another method would choose. What follows a change is decided by the rest of the schedule
(`metropolis.plan.follow`) and by fast methods; a change that ends earlier is kept. The effort is
bounded by the number of simulated requests, so results do not depend on the machine's speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import TypeAlias

from metropolis.plan.follow import Follower
from metropolis.plan.machine import ExecutionPlan
from metropolis.plan.search.candidates import kept, plans_of, ready_nodes, used_gpus
from metropolis.plan.timeline import Moment, Stage, Timeline

ChooseStage: TypeAlias = Callable[[Timeline, Moment], Stage]
"""The next stage; not empty while nodes are unfinished."""

EFFORT = 6_000_000
"""Simulated requests; an outlook counts as `OUTLOOK_REQUESTS` more: it takes as long."""
OUTLOOK_REQUESTS = 150
STAGES_MAX = 100


class Lookahead:
    """One search. `first` choose the first schedules; `fast` what follows a change."""

    def __init__(
        self,
        timeline: Timeline,
        first: Sequence[ChooseStage],
        fast: Sequence[ChooseStage],
        effort: int = EFFORT,
    ) -> None:
        self._timeline, self._fast, self._first, self._effort = timeline, fast, first, effort
        self.ends_s = inf
        self.stages: list[Stage] = []
        """The best so far."""

    def run(self) -> list[Stage]:
        """The stages of the best schedule found."""
        start = self._timeline.start()
        for choose in self._first:
            self._roll(start, [], choose)
        is_better = True
        while is_better and not self._is_spent:
            is_better = self._improve(start)
        return self.stages

    @property
    def _is_spent(self) -> bool:
        timeline = self._timeline
        spent = timeline.simulated_requests + OUTLOOK_REQUESTS * timeline.outlooks
        return spent > self._effort

    def _improve(self, start: Moment) -> bool:
        """Try changes of each stage; whether one ended earlier."""
        before_s, index, moment = self.ends_s, 0, start
        while index < len(self.stages) and not self._is_spent:
            best_s = self.ends_s
            for stage in self._changes(moment, self.stages[index]):
                self._try(moment, self.stages[:index], stage)
                if self._is_spent or self.ends_s < best_s:
                    break
            if self.ends_s < best_s:
                continue  # the same stage again, changed
            following = self._after(moment, self.stages[index])
            assert following is not None
            moment, index = following, index + 1
        return self.ends_s < before_s

    def _try(self, moment: Moment, past: list[Stage], stage: Stage) -> None:
        following = self._after(moment, stage)
        if following is None or following.time_s >= self.ends_s:
            return
        rest = self.stages[len(past) + 1 :]
        prefix = [*past, stage]
        self._roll(following, prefix, self._following(rest))
        for choose in self._fast:
            self._roll(following, prefix, choose)

    def _roll(self, moment: Moment, past: list[Stage], choose: ChooseStage) -> None:
        """Follow a method to the end, unless it becomes later than the best."""
        stages = list(past)
        while moment.unfinished:
            if moment.time_s >= self.ends_s or len(stages) == STAGES_MAX:
                return
            stage = choose(self._timeline, moment)
            following = self._after(moment, stage)
            if following is None:
                return
            stages.append(stage)
            moment = following
        if moment.time_s < self.ends_s:
            self.ends_s, self.stages = moment.time_s, stages

    def _after(self, moment: Moment, stage: Stage) -> Moment | None:
        """The moment after a stage; None if it does not fit or never ends."""
        outlook = self._timeline.outlook(moment, stage)
        if outlook is None or outlook.ends_s == inf:
            return None
        return self._timeline.after(outlook)

    def _following(self, rest: Sequence[Stage]) -> ChooseStage:
        """The method that follows the rest of a schedule."""
        now: list[Moment] = []

        def fits(stage: Stage) -> bool:
            ready = ready_nodes(self._timeline, now[0], stage)
            return all(name in ready for name in stage) and self._timeline.fits(now[0], stage)

        follower = Follower(rest, fits)

        def choose(_: Timeline, moment: Moment) -> Stage:
            now[:] = [moment]
            return follower.next_stage(moment.unfinished, kept(moment)) or self._fast[0](
                self._timeline, moment
            )

        return choose

    def _changes(self, moment: Moment, stage: Stage) -> Iterable[Stage]:
        """Stages that differ from `stage` in one respect, the most promising first."""
        timeline, seen = self._timeline, {_key(stage)}
        for candidate in (*self._chosen(moment), *_neighbours(timeline, moment, stage)):
            if _key(candidate) not in seen and self._is_valid(moment, candidate):
                seen.add(_key(candidate))
                yield candidate

    def _chosen(self, moment: Moment) -> Iterable[Stage]:
        for choose in (*self._fast, *self._first):
            yield choose(self._timeline, moment)

    def _is_valid(self, moment: Moment, stage: Stage) -> bool:
        if not stage or used_gpus(stage) > self._timeline.machine.gpus:
            return False
        ready = ready_nodes(self._timeline, moment, stage)
        return all(name in ready for name in stage)


def _neighbours(timeline: Timeline, moment: Moment, stage: Stage) -> Iterable[Stage]:
    running = kept(moment)
    free = timeline.machine.gpus - used_gpus(stage)
    for name in ready_nodes(timeline, moment, stage):
        now = stage.get(name)
        for plan in plans_of(timeline, name):
            extra = plan.gpus - (now.gpus if now else 0) - free
            if plan == now:
                continue
            changed = {**stage, name: plan}
            if extra <= 0:
                yield changed
            else:
                yield from _made_room(timeline, changed, name, extra)
    for name, plan in running.items():  # what runs goes on
        if stage.get(name) != plan:
            yield {**stage, name: plan}
    for name in stage:
        yield {other: plan for other, plan in stage.items() if other != name}


def _made_room(timeline: Timeline, stage: Stage, winner: str, extra: int) -> Iterable[Stage]:
    """`stage` with `extra` GPUs less for one model other than `winner`, or without it."""
    for name, plan in stage.items():
        if name == winner or plan.gpus < extra:
            continue
        left = plan.gpus - extra
        if left == 0:
            yield {other: each for other, each in stage.items() if other != name}
        for smaller in plans_of(timeline, name):
            if smaller.gpus == left:
                yield {**stage, name: smaller}


def _key(stage: Mapping[str, ExecutionPlan]) -> tuple[tuple[str, ExecutionPlan], ...]:
    return tuple(sorted(stage.items()))
