"""Which GPUs a stage's models run on (SamuLLM §4.3).

Copies with tensor parallelism occupy whole NVLink groups, or a part of one. Models that continue
stay where they are, unless others fit only if some of them move; then those are moved whose
loading takes least. Subsets of the models are tried in that order, up to a limit; beyond it, models
move in the order of their loading times until the others fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import TypeAlias

from metropolis.plan.machine import ExecutionPlan

Gpus: TypeAlias = tuple[tuple[int, ...], ...]
"""The GPUs of each copy."""
SUBSETS_MAX = 4096
"""Maximum number of subsets of models that are tried; 12 models have as many."""


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
    least; of equal sums, there are the fewest models. If this takes more than SUBSETS_MAX subsets,
    the sum may be larger; still none of these models could stay alone.
    """
    if sum(plan.gpus for plan in stage.values()) > gpus:
        return None
    if (found := _place_rest(gpus, group, stage, stays)) is not None:
        return found
    movable = sorted(stays, key=lambda name: (load_s[name], name))
    for moving in islice(_cheapest_subsets([load_s[name] for name in movable]), SUBSETS_MAX):
        names = {movable[index] for index in moving}
        kept = {name: copies for name, copies in stays.items() if name not in names}
        if (found := _place_rest(gpus, group, stage, kept)) is not None:
            return found
    return _place_in_order(gpus, group, stage, stays, movable)


def _cheapest_subsets(costs: Sequence[float]) -> Iterator[tuple[int, ...]]:
    """The subsets of indices by the sum of their costs, then by size, then in order; not the empty
    one. `costs` ascend.

    From each follow two that cost no less: with the next index, and with it in place of the last.
    """
    heap: list[tuple[float, int, tuple[int, ...]]] = [(costs[0], 1, (0,))] if costs else []
    while heap:
        _, _, chosen = heappop(heap)
        yield chosen
        following = chosen[-1] + 1
        if following < len(costs):
            for successor in ((*chosen, following), (*chosen[:-1], following)):
                cost = sum(costs[index] for index in successor)
                heappush(heap, (cost, len(successor), successor))


def _place_in_order(
    gpus: int,
    group: int,
    stage: Mapping[str, ExecutionPlan],
    stays: Mapping[str, Gpus],
    movable: Sequence[str],
) -> dict[str, Gpus] | None:
    """Models of `movable` move one after another until the others fit; then those stay after all
    that can, from the last on."""
    kept, moving, found = dict(stays), list[str](), None
    for name in movable:
        del kept[name]
        moving.append(name)
        if (found := _place_rest(gpus, group, stage, kept)) is not None:
            break
    else:
        return None
    for name in reversed(moving):
        more = {**kept, name: stays[name]}
        if (other := _place_rest(gpus, group, stage, more)) is not None:
            kept, found = more, other
    return found


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
