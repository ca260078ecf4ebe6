"""Preemption by swap and multi-step scheduling, computed by hand."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis._core import Completion, InstancePool, Profile, Request
from metropolis.sim.reference import ReferencePool
from tests.sim.pool_cases import KINDS, Case, Kind, cases, run


def profile(host_gb: float = 1.0) -> Profile:
    """One millisecond per computed token and per copied block."""
    return Profile(
        g_ms=1.0, kv_capacity_tokens=16, block_tokens=4,
        kv_bytes_per_token=250_000, pcie_gb_per_s=1.0, host_gb=host_gb,
    )  # fmt: skip


def ends_ms(pool: InstancePool | ReferencePool) -> dict[int, float]:
    return {c.id: pytest.approx(1000 * c.last_token_sim_s) for c in pool.advance(inf)}


def test_a_swapped_sequence_resumes_decoding() -> None:
    pool = InstancePool(profile(), preemption="swap")
    pool.submit(0, Request(8, 9), 0.0)
    pool.submit(1, Request(8, 2), 0.0)
    pool.advance(0.017)  # both prompts fill the memory; the first decode preempts the second
    status = pool.status()
    assert (status.preemptions, status.kv_host_blocks, status.swapped_blocks) == (1, 2, 2)
    # 16 prefill, 8 decodes and 2 blocks out; then 2 blocks in and one decode: recompute takes 9
    assert ends_ms(pool) == {0: 26, 1: 29}
    assert (pool.status().kv_host_blocks, pool.status().swapped_blocks) == (0, 4)


def test_sequences_that_do_not_fit_the_host_are_recomputed() -> None:
    one_block = 1e-3
    pool = InstancePool(profile(one_block), preemption="swap")
    pool.submit(0, Request(8, 9), 0.0)
    pool.submit(1, Request(8, 2), 0.0)
    assert ends_ms(pool) == {0: 24, 1: 33}
    assert pool.status().swapped_blocks == 0


def test_decisions_come_every_n_iterations() -> None:
    engine = Profile(w_ms=10.0, kv_capacity_tokens=1024)
    pool = InstancePool(engine, decision_iterations=4)
    pool.submit(0, Request(8, 4), 0.0)  # a prefill, and three tokens of four iterations
    pool.submit(1, Request(8, 30), 0.0)
    pool.submit(2, Request(8, 1), 0.021)  # waits for the decision at 50 ms
    assert pool.advance(0.049) == []
    assert pool.progress() == {0: 4, 1: 4}  # the last token of 0 exists, but is not reported yet
    (ended,) = pool.advance(0.05)
    assert (ended.id, ended.output_tokens) == (0, 4)
    (joined,) = pool.advance(0.061)
    assert (joined.id, joined.last_token_sim_s) == (2, pytest.approx(0.06))
    pool.abort(1, 0.063)
    (left,) = pool.advance(inf)
    assert (left.output_tokens, left.last_token_sim_s) == (6 + 4, pytest.approx(0.1))


@KINDS
def test_a_decision_takes_time_before_each_prefill_and_every_n_iterations(kind: Kind) -> None:
    engine = Profile(w_ms=10.0, d_ms=1.0, e_ms=0.1, kv_capacity_tokens=1024)
    pool = kind(engine, decision_iterations=4)
    pool.submit(0, Request(8, 9), 0.0)
    pool.submit(1, Request(8, 9), 0.0)  # a prefill, and twice four iterations of both
    assert ends_ms(pool) == dict.fromkeys((0, 1), 9 * 10 + 3 * (1 + 2 * 0.1))


@given(cases())
@settings(max_examples=100, deadline=None)
def test_with_one_iteration_per_decision_and_no_preemption_nothing_changes(case: Case) -> None:
    """Without preemptions, the kind of preemption has no effect."""
    with_swap, pool = run(case, InstancePool)
    if not pool.preemptions() and case.options.decision_iterations == 1:
        options = replace(case.options, preemption="recompute")
        plain = InstancePool(case.profile, case.instances, **asdict(options))
        for id, (now, request) in zip(case.ids, case.requests, strict=True):
            plain.submit(id, request, now)
        assert [(c.id, c.last_token_sim_s) for c in plain.advance(inf)] == [
            (id, last) for id, *_, last, _, _ in with_swap
        ]


@KINDS
def test_aborting_a_swapped_request_frees_host_memory(kind: Kind) -> None:
    pool = kind(profile(), preemption="swap")
    pool.submit(0, Request(8, 9), 0.0)
    pool.submit(1, Request(8, 2), 0.0)
    pool.advance(0.017)
    assert pool.status().kv_host_blocks == 2
    pool.abort(1, 0.0171)
    left: Completion = pool.advance(0.0171)[0]  # type: ignore[assignment]
    assert (left.id, left.output_tokens, left.aborted) == (1, 1, True)
    assert pool.status().kv_host_blocks == 0


@given(st.integers(1, 40), st.integers(2, 9))
def test_a_lone_request_ends_with_its_window(output: int, window: int) -> None:
    pool = InstancePool(Profile(w_ms=10, kv_capacity_tokens=1024), decision_iterations=window)
    pool.submit(0, Request(8, output), 0.0)
    (ended,) = pool.advance(inf)
    assert ended.output_tokens == output
    iterations = 1 + -(-(output - 1) // window) * window
    assert ended.last_token_sim_s == pytest.approx(0.01 * iterations)
