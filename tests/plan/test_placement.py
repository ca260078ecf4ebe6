"""GPUs of a stage's models."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from metropolis.plan.machine import ExecutionPlan
from metropolis.plan.placement import Gpus, place

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
