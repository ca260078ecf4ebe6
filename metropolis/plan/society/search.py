"""The search for a society's plan.

1. From the even splits, moves that lower the estimate lead to a first allocation.
2. Moves from there, the most promising by estimate first, are judged by replays: for the whole day,
   and for each phase. The day is the sum of its phases.
3. Dynamic programming over the phases chooses among the allocations found, with the loading time of
   each change. Agents out of order are in several phases at a time, which it does not know.
4. Full replays compare the best even split, the best allocation for the day and the changing plan;
   then the changing plan without its least useful change, as long as that is faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from metropolis.names import did_you_mean
from metropolis.plan.machine import Machine
from metropolis.plan.society.allocation import GPUS_MAX, Allocation, Models, even_splits, neighbours
from metropolis.plan.society.fleet import Phase, loading_s
from metropolis.plan.society.judge import Judge, Stretch, stretches
from metropolis.plan.society.phases import first_steps
from metropolis.runtime.replays.replay import ReplayResult
from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError

TRIED = 3
"""Moves from an allocation that are replayed before the search ends there."""
REPLAYS_MAX = 80
"""Replays of samples before the search keeps what it has found."""


@dataclass(frozen=True)
class Candidate:
    """A plan and its replay of the whole trace."""

    name: str
    """`even`, `fixed` (one allocation for the whole day) or `changing`."""
    phases: tuple[Phase, ...]
    result: ReplayResult

    @property
    def makespan_sim_s(self) -> float:
        """The makespan of the replay."""
        return self.result.makespan_sim_s

    @property
    def gpus_busy(self) -> float:
        """Mean busy share of the GPUs that it uses."""
        return self.result.utilisation or 0.0


@dataclass(frozen=True)
class SocietyPlan:
    """What a search found."""

    models: Models
    mode: str
    firsts: tuple[int, ...]
    """The step at which each phase of the day begins, whether or not the plan changes there."""
    even: Candidate
    fixed: Candidate
    changing: Candidate | None
    """The plan that changes over the day; None: no change was expected to pay."""
    replays: int
    """The number of replays, of samples and of the whole trace."""
    search_wall_s: float

    @property
    def candidates(self) -> list[Candidate]:
        """The candidates, the simplest first."""
        return [each for each in (self.even, self.fixed, self.changing) if each is not None]

    @property
    def best(self) -> Candidate:
        """The fastest candidate; the simplest of equally fast ones."""
        return min(self.candidates, key=lambda each: each.makespan_sim_s)


def plan_society(
    trace: Trace,
    machine: Machine,
    *,
    mode: str = "versioned",
    phases: int | None = None,
    replays_max: int = REPLAYS_MAX,
    advance: Callable[[int], None] = lambda _: None,
) -> SocietyPlan:
    """Plan the GPUs for the models that the trace's calls ask.

    `phases`: how many the day is cut into; None: by its mix of models. `advance` is called with 1
    after each replay. Raises MetropolisError if a model is unknown, a call does not fit its
    context, or the GPUs do not suffice.
    """
    began_s = time.perf_counter()
    models = Models(machine, tuple(sorted(_used_models(trace, machine))))
    _check(trace, models)
    judge = Judge(trace, models, mode, advance)
    firsts = first_steps(trace, models, phases)
    day = stretches(trace, models, firsts)
    splits = even_splits(models)
    even = min(splits, key=lambda each: _estimated(day, each))

    fixed = _found(judge, day, splits, replays_max)
    chosen = [fixed, even]
    if len(day) > 1:
        chosen += [_found(judge, [each], [fixed, even], replays_max) for each in day]
    path = _cheapest_path(judge, day, [*dict.fromkeys(chosen)])
    return SocietyPlan(
        models,
        mode,
        tuple(firsts),
        even=_judged(judge, "even", [Phase(0, even)]),
        fixed=_judged(judge, "fixed", [Phase(0, fixed)]),
        changing=_judged_path(judge, day, path) if len(path) > 1 else None,
        replays=judge.replays,
        search_wall_s=time.perf_counter() - began_s,
    )


def _used_models(trace: Trace, machine: Machine) -> set[str]:
    """The models that calls ask. Raises MetropolisError if a call has none, or an unknown one."""
    used = {trace.calls.models[index] for index in {*trace.calls.model.tolist()}}
    if not used:
        raise MetropolisError("the trace has no calls; there is nothing to plan")
    advice = (
        "name one for each function with --model FUNCTION=NAME, and --model NAME for all others"
    )
    if "" in used:
        raise MetropolisError(f"calls of the trace have no model; {advice}")
    for unknown in sorted(used - machine.shapes.keys()):
        raise MetropolisError(
            f"calls of the trace ask {unknown!r}; there is no model of this name"
            f"{did_you_mean(unknown, machine.shapes)}; {advice}; "
            f"there are {', '.join(sorted(machine.shapes))}"
        )
    return used


def _check(trace: Trace, models: Models) -> None:
    machine, calls = models.machine, trace.calls
    if machine.gpus > GPUS_MAX:
        raise MetropolisError(f"{machine.gpus} GPUs; a society is planned for at most {GPUS_MAX}")
    least = {name: plans[0].gpus for name, plans in zip(models.names, models.plans, strict=True)}
    if not even_splits(models):
        needs = ", ".join(f"{name} {count}" for name, count in least.items())
        raise MetropolisError(
            f"{machine.gpus} GPUs do not suffice for all models at a time; they need: {needs}"
        )
    tokens = calls.prompt_tokens + calls.output_tokens
    for name in models.names:
        longest = int(tokens[calls.model == calls.models.index(name)].max())
        if longest > (context := machine.shape(name).context_tokens):
            raise MetropolisError(
                f"a call of {name} has {longest:,} tokens; its context has {context:,}"
            )


def _estimated(over: Sequence[Stretch], allocation: Allocation) -> float:
    return sum(each.estimate.seconds(allocation) for each in over)


def _judged_s(judge: Judge, over: Sequence[Stretch], allocation: Allocation) -> float:
    return sum(judge.seconds(each, allocation) for each in over)


def _found(
    judge: Judge, over: Sequence[Stretch], starts: Sequence[Allocation], replays_max: int
) -> Allocation:
    """An allocation for some phases, by estimate and then by replays; no start is faster."""
    models = judge.models
    needed = [any(each) for each in zip(*(each.needed for each in over), strict=True)]
    best = min(starts, key=lambda each: _estimated(over, each))
    while True:
        better = min(
            (best, *neighbours(models, best, needed)), key=lambda each: _estimated(over, each)
        )
        if better == best:
            break
        best = better
    best = min((best, *starts), key=lambda each: _judged_s(judge, over, each))
    while judge.replays < replays_max:
        moves = sorted(neighbours(models, best, needed), key=lambda each: _estimated(over, each))[
            :TRIED
        ]
        better = min((best, *moves), key=lambda each: _judged_s(judge, over, each))
        if better == best:
            break
        best = better
    return best


def _cheapest_path(
    judge: Judge, day: Sequence[Stretch], allocations: Sequence[Allocation]
) -> list[Phase]:
    """The allocation of each phase, equal neighbours joined: least time with its changes."""
    best: dict[Allocation, tuple[float, list[Phase]]] = {}
    for stretch in day:
        reached: dict[Allocation, tuple[float, list[Phase]]] = {}
        for now in allocations:
            if not stretch.hosts(now):
                continue
            cost = judge.seconds(stretch, now)
            phase = Phase(stretch.first, now)
            ways = [
                (
                    spent + loading_s(judge.models, before, now),
                    path if before == now else [*path, phase],
                )
                for before, (spent, path) in best.items()
            ] or [(0.0, [phase])]
            spent, path = min(ways, key=lambda way: way[0])
            reached[now] = spent + cost, path
        best = reached
    return min(best.values(), key=lambda way: way[0])[1]


def _judged(judge: Judge, name: str, phases: Sequence[Phase]) -> Candidate:
    return Candidate(name, tuple(phases), judge.day(phases))


def _judged_path(judge: Judge, day: Sequence[Stretch], path: list[Phase]) -> Candidate:
    """The path, or without some of its changes, by full replays."""
    best = _judged(judge, "changing", path)
    while len(best.phases) > 2:
        shorter = [
            [*best.phases[:index], *best.phases[index + 1 :]]
            for index in range(1, len(best.phases))
        ]
        hosting = [each for each in shorter if _hosts(each, day)]
        if not hosting:
            break
        expected = min(hosting, key=lambda each: _path_s(judge, day, each))
        better = _judged(judge, "changing", expected)
        if better.makespan_sim_s >= best.makespan_sim_s:
            break
        best = better
    return best


def _path_s(judge: Judge, day: Sequence[Stretch], path: Sequence[Phase]) -> float:
    """The sum of the phases, with the loading times of the changes."""
    loads = (loading_s(judge.models, a.allocation, b.allocation) for a, b in pairwise(path))
    stretches_s = (judge.seconds(each, _at(path, each)) for each in day)
    return sum(stretches_s) + sum(loads)


def _at(path: Sequence[Phase], stretch: Stretch) -> Allocation:
    return [each for each in path if each.step <= stretch.first][-1].allocation


def _hosts(path: Sequence[Phase], day: Sequence[Stretch]) -> bool:
    """Whether each stretch has the models that it needs."""
    return all(stretch.hosts(_at(path, stretch)) for stretch in day)
