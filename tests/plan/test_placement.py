"""GPUs of a stage's models."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.plan import placement
from metropolis.plan.machine import ExecutionPlan
from metropolis.plan.placement import SUBSETS_MAX, Gpus, _place_rest, place

GPUS, GROUP = 8, 2
PLANS = st.builds(ExecutionPlan, st.integers(1, 3), st.sampled_from([1, 2, 4]))
STAGES = st.dictionaries(st.sampled_from("abcdef"), PLANS, max_size=5)


def is_legal(stage: dict[str, ExecutionPlan], placed: dict[str, Gpus]) -> bool:
    used = [gpu for copies in placed.values() for copy in copies for gpu in copy]
    return (
        placed.keys() == stage.keys()
        and len(used) == len(set(used))
        and all(0 <= gpu < GPUS for gpu in used)
        and all(
            len(placed[name]) == plan.dp and all(len(copy) == plan.tp for copy in placed[name])
            for name, plan in stage.items()
        )
        and all(
            len({gpu // GROUP for gpu in copy}) == max(1, plan.tp // GROUP)
            for name, plan in stage.items()
            for copy in placed[name]
        )
    )


@given(STAGES, STAGES, st.data())
def test_models_stay_unless_others_need_their_place(
    before: dict[str, ExecutionPlan], stage: dict[str, ExecutionPlan], data: st.DataObject
) -> None:
    load_s = {name: float(data.draw(st.integers(1, 9))) for name in "abcdef"}
    first = place(GPUS, GROUP, before, {}, load_s)
    fits = sum(plan.gpus for plan in before.values()) <= GPUS
    assert (first is not None) == fits
    if first is None:
        return
    assert is_legal(before, first)
    stays = {name: first[name] for name, plan in stage.items() if before.get(name) == plan}
    placed = place(GPUS, GROUP, stage, stays, load_s)
    if placed is None:
        assert sum(plan.gpus for plan in stage.values()) > GPUS
        return
    assert is_legal(stage, placed)
    moved = {name for name, copies in stays.items() if placed[name] != copies}
    for count in range(len(moved)):
        for fewer in combinations(sorted(stays), count):
            kept = {name: copies for name, copies in stays.items() if name not in fewer}
            if sum(load_s[name] for name in fewer) < sum(load_s[name] for name in moved):
                other = place(GPUS, GROUP, stage, kept, dict.fromkeys(load_s, 1.0))
                assert other is None or any(other[name] != kept[name] for name in kept)


def place_by_all_subsets(
    gpus: int,
    group: int,
    stage: Mapping[str, ExecutionPlan],
    stays: Mapping[str, Gpus],
    load_s: Mapping[str, float],
) -> dict[str, Gpus] | None:
    """The specification of `place`."""
    movable = sorted(stays, key=lambda name: (load_s[name], name))
    subsets = [each for n in range(len(movable) + 1) for each in combinations(movable, n)]
    for moving in sorted(subsets, key=lambda names: sum(load_s[name] for name in names)):
        kept = {name: copies for name, copies in stays.items() if name not in moving}
        if (found := _place_rest(gpus, group, stage, kept)) is not None:
            return found
    return None


@st.composite
def changes(
    draw: st.DrawFn, gpus: int
) -> tuple[dict[str, ExecutionPlan], dict[str, Gpus], dict[str, float]]:
    """A stage on all GPUs: small nodes that stay, scattered, and larger ones. And loading times."""
    random = Random(draw(st.integers(0, 10**9)))
    free, left = random.sample(range(gpus), gpus), gpus
    stage: dict[str, ExecutionPlan] = {}
    stays: dict[str, Gpus] = {}
    for name in "abcdef":
        copies = random.choice([1, 1, 1, 2])
        if copies <= left - 4:
            stage[name], left = ExecutionPlan(copies, 1), left - copies
            stays[name] = tuple((free.pop(),) for _ in range(copies))
    for name in "ghijkl":
        plan = ExecutionPlan(1, random.choice([2, 2, 2, 3, 4]))
        if plan.gpus <= left:
            stage[name], left = plan, left - plan.gpus
    return stage, stays, {name: float(random.randint(0, 3)) for name in stage}


@settings(max_examples=200)
@given(changes(12), st.sampled_from([2, 4]))
def test_the_models_that_move_are_those_of_the_specification(
    change: tuple[dict[str, ExecutionPlan], dict[str, Gpus], dict[str, float]], group: int
) -> None:
    assert place(12, group, *change) == place_by_all_subsets(12, group, *change)


@pytest.mark.parametrize(("singles", "pairs"), [(20, 10), (30, 5), (38, 1), (0, 20)])
def test_many_models_are_placed_at_once(
    singles: int, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as there are such models, each pair of GPUs has a model that stays."""
    tried = 0

    def counted(
        gpus: int, group: int, stage: Mapping[str, ExecutionPlan], kept: Mapping[str, Gpus]
    ) -> dict[str, Gpus] | None:
        nonlocal tried
        tried += 1
        return _place_rest(gpus, group, stage, kept)

    monkeypatch.setattr(placement, "_place_rest", counted)
    order = [*range(0, 40, 2), *range(1, 40, 2)]
    stays: dict[str, Gpus] = {f"n{index}": ((order[index],),) for index in range(singles)}
    stage = {name: ExecutionPlan(1, 1) for name in stays}
    stage |= {f"p{index}": ExecutionPlan(1, 2) for index in range(pairs)}
    load_s = {name: float(1 + number % 3) for number, name in enumerate(stage)}
    placed = place(40, 2, stage, stays, load_s)
    assert placed is not None
    used = [gpu for copies in placed.values() for copy in copies for gpu in copy]
    assert sorted(used) == list(range(40))
    assert all(
        abs(first - second) == 1 for first, second in (placed[f"p{n}"][0] for n in range(pairs))
    )
    moved = [name for name, copies in stays.items() if placed[name] != copies]
    assert tried <= 1 + SUBSETS_MAX + 2 * singles
    for name in moved:
        more = {each: copies for each, copies in stays.items() if each not in moved or each == name}
        assert _place_rest(40, 2, stage, more) is None
