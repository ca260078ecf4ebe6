"""The phases of a day: stretches in which the mix of models is about the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from metropolis._core import simulate
from metropolis.plan.society.allocation import Models
from metropolis.trace.schema import Trace

SLICES_MAX = 24
"""Stretches of equal length that phases consist of: hours, of a day or less."""
PHASES_MAX = 6
"""Maximum number of automatic phases."""
LOSS_MAX = 0.0025
"""Automatic phases are merged while the work in another mix than its phase's grows by less, as a
share of all work."""


def work_s(trace: Trace, models: Models) -> npt.NDArray[np.float64]:
    """(models,): seconds of GPUs for the calls of each model, sent at once to its smallest copy."""
    calls = trace.calls
    found = []
    for name, plans in zip(models.names, models.plans, strict=True):
        index = calls.models.index(name) if name in calls.models else -1
        of = np.flatnonzero(calls.model == index)
        plan = plans[0]
        result = simulate(
            models.machine.profile(name, plan.tp),
            np.zeros(len(of)),
            calls.prompt_tokens[of],
            calls.output_tokens[of],
            instances=1,
        )
        found.append(float(result["last_token_sim_s"].max(initial=0.0)) * plan.tp)
    return np.array(found)


def first_steps(trace: Trace, models: Models, count: int | None) -> list[int]:
    """The step at which each of `count` phases begins; None: as many as the mix asks for."""
    hours = round(trace.steps * trace.meta.step_s / 3600)
    slices = max(1, min(hours, SLICES_MAX), count or 1)
    bounds: list[int] = np.unique(
        np.linspace(0, trace.steps, slices + 1).round().astype(int)
    ).tolist()
    work = [work_s(trace.window(first, last), models) for first, last in pairwise(bounds)]
    firsts, phases = bounds[:-1], [[each] for each in work]
    total = float(sum(each.sum() for each in work)) or 1.0
    while len(phases) > 1:
        losses = [
            _spread([*one, *other]) - _spread(one) - _spread(other)
            for one, other in pairwise(phases)
        ]
        least = int(np.argmin(losses))
        is_alike = losses[least] <= LOSS_MAX * total
        if len(phases) <= (count or PHASES_MAX) and (count is not None or not is_alike):
            break
        phases[least] += phases.pop(least + 1)
        del firsts[least + 1]
    return firsts


def _spread(phase: Sequence[npt.NDArray[np.float64]]) -> float:
    """Work in another mix than that of the whole phase, in seconds."""
    together = np.sum(phase, axis=0)
    total = float(together.sum())
    if not total:
        return 0.0
    return float(sum(np.abs(each - together * each.sum() / total).sum() for each in phase)) / 2
