"""The methods by name, and a search with one of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from metropolis.names import check_name
from metropolis.plan.schedule import Schedule, simulated
from metropolis.plan.search.greedy import greedy_stage
from metropolis.plan.search.heuristics import max_stage, min_stage
from metropolis.plan.search.lookahead import EFFORT, ChooseStage, Lookahead
from metropolis.plan.timeline import PlannedStage, Timeline

OURS = "ours"
RULES: Mapping[str, ChooseStage] = {
    "greedy": greedy_stage,
    "max": max_stage,
    "min": min_stage,
    "greedy-no-preemption": partial(greedy_stage, preempt=False),
    "min-no-preemption": partial(min_stage, preempt=False),
}
"""Methods that choose a stage at a time; `greedy` is SamuLLM's Algorithm 1."""
METHODS = (OURS, *RULES)


def search(timeline: Timeline, method: str = OURS, effort: int = EFFORT) -> Schedule:
    """The schedule that a method finds for the timeline's workload; `effort`: see Lookahead.

    Raises MetropolisError on an unknown method, and if a model fits on no GPUs.
    """
    check_name("method", method, METHODS)
    if method == OURS:
        fast = RULES["min-no-preemption"]
        stages = Lookahead(timeline, tuple(RULES.values()), fast, effort).run()
    else:
        stages = _followed(timeline, RULES[method])
    return simulated(timeline, method, stages)


def _followed(timeline: Timeline, choose: ChooseStage) -> list[PlannedStage]:
    moment, stages = timeline.start(), list[PlannedStage]()
    while moment.unfinished:
        stages.append(PlannedStage(choose(timeline, moment)))
        outlook = timeline.outlook(moment, *stages[-1])
        assert outlook is not None
        moment = timeline.after(outlook)
    return stages
