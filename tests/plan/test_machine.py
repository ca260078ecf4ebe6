"""Loading times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.plan.machine import ExecutionPlan, LoadingTime, Machine
from metropolis.types import MetropolisError

MODEL = "vicuna-13b"
SECONDS = st.floats(0, 100)
COPIES, TP = st.integers(1, 8), st.sampled_from([1, 2, 4])
LOADING = st.builds(
    LoadingTime, SECONDS, SECONDS, SECONDS, most_s=SECONDS, copy_s=SECONDS, parallel_s=SECONDS
)


@given(LOADING, COPIES, TP)
def test_a_measured_time_replaces_that_of_one_copy(
    loading: LoadingTime, copies: int, tp: int
) -> None:
    unbounded = Machine(loading=replace(loading, most_s=float("inf")))
    measured_s = unbounded.load_s(MODEL, ExecutionPlan(1, tp))
    measured = Machine(loading=loading, loading_s={(MODEL, tp): measured_s})
    plan = ExecutionPlan(copies, tp)
    assert measured.load_s(MODEL, plan) == unbounded.load_s(MODEL, plan)


@given(LOADING, st.dictionaries(st.tuples(st.just(MODEL), TP), SECONDS), COPIES, TP)
def test_further_copies_never_shorten_loading(
    loading: LoadingTime, loading_s: dict[tuple[str, int], float], copies: int, tp: int
) -> None:
    machine = Machine(loading=loading, loading_s=loading_s)
    fewer, more = (machine.load_s(MODEL, ExecutionPlan(copies + n, tp)) for n in (0, 1))
    assert fewer <= more
    if (MODEL, tp) in loading_s and loading.copy_s > 0.01:
        assert fewer < more


def test_a_degree_fits_the_groups_of_nvlink() -> None:
    shape, profile = Machine().shape(MODEL), Machine().profile(MODEL, 1)
    group = Machine().nvlink_group
    assert group == 2

    def plans(gpus: int, degree: int) -> list[tuple[int, int]]:
        machine = Machine(gpus=gpus, shapes={MODEL: shape}, profiles={(MODEL, degree): profile})
        return [(plan.dp, plan.tp) for plan in machine.plans(MODEL)]

    assert plans(8, 4) == [(1, 4), (2, 4)]
    assert plans(3, 2) == [(1, 2)]
    for gpus, degree in ((3, 3), (6, 3), (8, 5)):
        with pytest.raises(MetropolisError, match=f"a profile for {degree} GPUs, but NVLink conn"):
            plans(gpus, degree)
