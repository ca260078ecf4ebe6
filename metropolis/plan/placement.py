"""Which GPUs a stage's models run on (SamuLLM §4.3).

Copies with tensor parallelism occupy whole NVLink groups, or a part of one. Models that continue
stay where they are, unless others fit only if some of them move; then those are moved whose
loading takes least.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TypeAlias

from metropolis.plan.machine import ExecutionPlan

Gpus: TypeAlias = tuple[tuple[int, ...], ...]
"""The GPUs of each copy."""


def shown_gpus(gpus: Gpus) -> str:
    """The GPUs of each copy, for instance "0-1 2-3"."""
    return " ".join(
        f"{copy[0]}-{copy[-1]}"
        if len(copy) > 1 and copy == tuple(range(copy[0], copy[-1] + 1))
        else ",".join(map(str, copy))
        for copy in gpus
    )


def place(
    gpus: int,
    group: int,
    stage: Mapping[str, ExecutionPlan],
    stays: Mapping[str, Gpus],
    load_s: Mapping[str, float],
) -> dict[str, Gpus] | None:
    """The GPUs of each model of `stage`; None if they do not fit.

    `group`: GPUs that NVLink connects; `stays`: where models are now that continue unchanged;
    `load_s`: the loading time of each model. Of the models that move, the sum of their times is
    least.
    """
    if sum(plan.gpus for plan in stage.values()) > gpus:
        return None
    if (found := _place_rest(gpus, group, stage, stays)) is not None:
        return found
    movable = sorted(stays, key=lambda name: (load_s[name], name))
    subsets = [
        each for count in range(1, len(movable) + 1) for each in combinations(movable, count)
    ]
    subsets.sort(key=lambda names: sum(load_s[name] for name in names))
    for moving in subsets:
        kept = {name: copies for name, copies in stays.items() if name not in moving}
        if (found := _place_rest(gpus, group, stage, kept)) is not None:
            return found
    return None


def _place_rest(
    gpus: int, group: int, stage: Mapping[str, ExecutionPlan], kept: Mapping[str, Gpus]
) -> dict[str, Gpus] | None:
    taken = {gpu for copies in kept.values() for copy in copies for gpu in copy}
    free = [gpu for gpu in range(gpus) if gpu not in taken]
    placed = dict(kept)
    rest = sorted((name for name in stage if name not in kept), key=lambda n: (-stage[n].tp, n))
    for name in rest:
        copies = []
        for _ in range(stage[name].dp):
            copy = _take(free, group, stage[name].tp)
            if copy is None:
                return None
            copies.append(copy)
        placed[name] = tuple(copies)
    return placed


def _take(free: list[int], group: int, count: int) -> tuple[int, ...] | None:
    """Take `count` of the free GPUs, from groups with the fewest that are free and suffice."""
    by_group: dict[int, list[int]] = {}
    for gpu in free:
        by_group.setdefault(gpu // group, []).append(gpu)
    whole = [members for members in by_group.values() if len(members) == group]
    if count < group:
        fitting = [members for members in by_group.values() if len(members) >= count]
        taken = min(fitting, key=len, default=[])[:count]
    else:
        taken = [gpu for members in whole[: -(-count // group)] for gpu in members][:count]
    if len(taken) < count:
        return None
    for gpu in taken:
        free.remove(gpu)
    return tuple(taken)
