"""The time that a run still takes: the schedule's estimate, scaled by the progress so far."""

from __future__ import annotations

from collections.abc import Mapping

from metropolis.plan.running.folder import RunRecord

PRIOR = 0.05
"""The weight of the estimate against what is observed, as a share of the planned time."""


def time_left_s(record: RunRecord, elapsed_s: float, answered_before: Mapping[str, int]) -> float:
    """Seconds left after `elapsed_s` of this process, which found `answered_before` by node.

    Work is measured in planned GPU seconds, and a node's are spread evenly over its requests. With
    T planned seconds, of which the share f0 was done before and f is done now,

        left = T (1 - f) (elapsed + PRIOR T) / (T (f - f0) + PRIOR T)

    is the plan's estimate at first, and the observed speed determines it later.
    """
    planned_s = record.planned.ends_s
    prior_s = PRIOR * planned_s
    work = _gpu_seconds(record)
    total = sum(work.values())
    if not total:
        return 0.0

    def share(answered: Mapping[str, int]) -> float:
        done = (work[name] * answered[name] / node.requests for name, node in record.nodes.items())
        return sum(done) / total

    done_before = share(answered_before)
    done = share({name: node.answered for name, node in record.nodes.items()})
    slowness = (elapsed_s + prior_s) / (planned_s * (done - done_before) + prior_s)
    return planned_s * (1 - done) * slowness


def _gpu_seconds(record: RunRecord) -> dict[str, float]:
    """The planned GPU seconds of each node."""
    found = dict.fromkeys(record.nodes, 0.0)
    for stage in record.planned.stages:
        for name, node in stage.nodes.items():
            found[name] += node.plan.gpus * (stage.ends_s - stage.begins_s)
    return found
