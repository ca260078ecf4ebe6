"""A search that looks ahead: changes of one stage, judged by how the application then ends.

SamuLLM's greedy search judges a stage by its throughput, and ends a stage when a model finishes.
Here a first schedule is the best of several methods, each followed to the end (rollouts). Then each
of its stages in turn is changed in one respect (`metropolis.plan.search.changes`): another plan for
a model, a model more or less, two models' GPUs exchanged, or an earlier end at which a model gives
GPUs back. What follows a change is decided by the rest of the schedule (`metropolis.plan.follow`)
and by a fast method; a change that ends earlier is kept. A rollout stops when it is estimated to
end later (`Bounds.after`, no strict bound). The effort is bounded by the number of simulated
requests, so results do not depend on the machine's speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import TypeAlias

from metropolis.plan.follow import Follower
from metropolis.plan.search.bound import Bounds
from metropolis.plan.search.candidates import can_run, kept, needs_are_met, used_gpus
from metropolis.plan.search.changes import neighbours, seeded, shrunk_early
from metropolis.plan.search.components import components, filling, part_of
from metropolis.plan.timeline import Moment, Outlook, PlannedStage, Stage, Timeline

ChooseStage: TypeAlias = Callable[[Timeline, Moment], Stage]
"""The next stage; not empty while nodes are unfinished."""
Choose: TypeAlias = Callable[[Moment], PlannedStage]

EFFORT = 8_000_000
"""Simulated requests; an outlook counts as `OUTLOOK_REQUESTS` more: it takes as long."""
OUTLOOK_REQUESTS = 150
STAGES_MAX = 100
"""Maximum stages of a schedule, beyond one for each node."""
PART_SHARES = (1.0, 0.875, 0.75, 0.625, 0.5)
"""Shares of the GPUs that the part with the longest chain may get."""


class Lookahead:
    """One search. `first` choose the first schedules; `fast` what follows a change."""

    def __init__(
        self,
        timeline: Timeline,
        first: Sequence[ChooseStage],
        fast: ChooseStage,
        effort: int = EFFORT,
    ) -> None:
        self._timeline, self._first, self._effort = timeline, first, effort
        self._fast = fast
        self._bounds = Bounds(timeline)
        self._tails_s = self._bounds.longest_tails()
        self._stages_max = STAGES_MAX + len(timeline.workload)
        self.ends_s = inf
        self.stages: list[PlannedStage] = []
        """The stages of the best schedule so far, which ends at `ends_s`."""

    def run(self) -> list[PlannedStage]:
        """The stages of the best schedule found."""
        start = self._timeline.start()
        self._search(start)
        for choose in self._first:  # a rollout that was given up may have ended earlier
            self._roll(start, [], self._by(choose), is_bounded=False)
        return self.stages

    def _search(self, start: Moment) -> None:
        for choose in self._first:
            self._roll(start, [], self._by(choose))
        self._start_from_part(start)
        is_better = True
        while is_better and not self._is_spent:
            is_better = self._improve(start)

    def _start_from_part(self, start: Moment) -> None:
        """Plan the part with the longest chain on some GPUs, and fill the others."""
        timeline, tails_s = self._timeline, self._tails_s
        parts = components(timeline)
        longest = max(parts, key=lambda names: max(tails_s[name] for name in names))
        if len(parts) == 1:
            return
        for share in PART_SHARES:
            alone = part_of(timeline, longest, max(1, round(share * timeline.machine.gpus)))
            if alone is not None:
                part = Lookahead(alone, self._first, self._fast, self._effort // 16)
                part._search(alone.start())
                timeline.simulated_requests += alone.simulated_requests
                timeline.outlooks += alone.outlooks
                self._roll(start, [], filling(timeline, longest, part.stages))

    @property
    def _is_spent(self) -> bool:
        timeline = self._timeline
        spent = timeline.simulated_requests + OUTLOOK_REQUESTS * timeline.outlooks
        return spent > self._effort

    def _improve(self, start: Moment) -> bool:
        """Try changes of each stage; whether one ended earlier."""
        before_s, moment = self.ends_s, start
        for index in range(self._stages_max):
            for changed in self._changes(moment, self.stages[index]):
                self._try(moment, self.stages[:index], changed)
                if self._is_spent:
                    return self.ends_s < before_s
            outlook = self._outlook(moment, self.stages[index])
            assert outlook is not None
            moment = self._timeline.after(outlook)
            if index + 1 == len(self.stages):
                break
        return self.ends_s < before_s

    def _try(self, moment: Moment, past: list[PlannedStage], changed: list[PlannedStage]) -> None:
        """Replace a stage by one or two others."""
        stages = list(past)
        for stage in changed:
            outlook = self._outlook(moment, stage)
            if outlook is None or self._bounds.after(outlook) >= self.ends_s:
                return
            stages.append(stage)
            moment = self._timeline.after(outlook)
        rest = self.stages[len(past) + 1 :]
        self._roll(moment, stages, self._following(rest))
        self._roll(moment, stages, self._by(self._fast))

    def _roll(
        self, moment: Moment, past: list[PlannedStage], choose: Choose, *, is_bounded: bool = True
    ) -> None:
        """Follow a method to the end, unless it ends no earlier than the best schedule.

        With `is_bounded` a lower bound of its end, which is rounded, may give it up before.
        """
        stages = list(past)
        while moment.unfinished:
            if len(stages) == self._stages_max:
                return
            stage = choose(moment)
            outlook = self._outlook(moment, stage)
            if outlook is None:
                return
            ends_s = self._bounds.after(outlook) if is_bounded else outlook.ends_s
            if ends_s >= self.ends_s:
                return
            stages.append(stage)
            moment = self._timeline.after(outlook)
        if moment.time_s < self.ends_s:
            self.ends_s, self.stages = moment.time_s, stages

    def _outlook(self, moment: Moment, stage: PlannedStage) -> Outlook | None:
        """What follows; None if the stage does not fit or never ends."""
        outlook = self._timeline.outlook(moment, *stage)
        return None if outlook is None or outlook.ends_s == inf else outlook

    def _by(self, choose: ChooseStage) -> Choose:
        return lambda moment: PlannedStage(choose(self._timeline, moment))

    def _following(self, rest: Sequence[PlannedStage]) -> Choose:
        """The method that follows the rest of a schedule."""
        now: list[Moment] = []

        follower = Follower(rest, lambda stage: can_run(self._timeline, now[0], stage))

        def choose(moment: Moment) -> PlannedStage:
            now[:] = [moment]
            stage = follower.next_stage(moment.unfinished, kept(moment))
            if not stage:
                return PlannedStage(self._fast(self._timeline, moment))
            return PlannedStage(stage, follower.boundary)

        return choose

    def _changes(self, moment: Moment, stage: PlannedStage) -> Iterable[list[PlannedStage]]:
        """Yield the lists of stages that may replace `stage`."""
        timeline, seen = self._timeline, {_key(stage)}
        seeds = [*seeded(timeline, moment, self._tails_s)]
        others: Iterable[Stage] = (
            *(choose(timeline, moment) for choose in self._first),
            *seeds,
            *neighbours(timeline, moment, stage.plans),
        )
        for plans in (stage.plans, *seeds):
            yield from shrunk_early(timeline, moment, PlannedStage(plans))
        for plans in others:
            for boundary in dict.fromkeys((None, stage.boundary)):
                changed = PlannedStage(plans, boundary)
                if _key(changed) not in seen and self._is_valid(moment, plans):
                    seen.add(_key(changed))
                    yield [changed]

    def _is_valid(self, moment: Moment, stage: Stage) -> bool:
        timeline = self._timeline
        return 0 < used_gpus(stage) <= timeline.machine.gpus and needs_are_met(
            timeline, moment, stage
        )


def _key(stage: PlannedStage) -> tuple[object, ...]:
    return *sorted(stage.plans.items()), stage.boundary
