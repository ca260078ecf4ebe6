"""Requests in an engine get another priority: its queue, its preemptions, and the time waited."""

from __future__ import annotations

from math import inf

import pytest

from metropolis._core import InstancePool, Profile, Request
from metropolis.policy.base import QueuedRequest, ServedRequest
from metropolis.sim.instance import SimulatedInstance, SimulatedRequest, Start
from metropolis.sim.options import PoolOptions
from tests.sim.pool_cases import KINDS, Kind


@KINDS
def test_an_order_that_changes_while_requests_queue(kind: Kind) -> None:
    pool = kind(Profile(w_ms=10, kv_capacity_tokens=1024, max_sequences=1))
    for number, priority in enumerate((0, 1, 2, 3)):
        pool.submit(number, Request(8, 5, priority), 0.0)
    pool.reprioritize({1: 9, 3: 0, 77: 0}, 0.02)  # 77 is unknown
    assert [one.id for one in pool.advance(inf)] == [0, 3, 2, 1]


@KINDS
def test_a_request_that_fits_joins_when_it_becomes_the_first(kind: Kind) -> None:
    pool = kind(Profile(w_ms=10, kv_capacity_tokens=64))
    pool.submit(0, Request(16, 17), 0.0)
    pool.submit(1, Request(60, 1), 0.001)  # does not fit
    pool.submit(2, Request(16, 1), 0.002)  # would, but waits behind it
    pool.reprioritize({2: -1}, 0.055)
    (first,) = pool.advance(0.1)
    assert (first.id, first.last_token_sim_s) == (2, pytest.approx(0.07))


@KINDS
def test_the_new_last_is_preempted_and_its_wait_is_reported(kind: Kind) -> None:
    """Both grow by a block after 16 tokens; there is one more block. An iteration takes 10 ms."""
    pool = kind(Profile(w_ms=10, kv_capacity_tokens=3 * 16))
    pool.submit(0, Request(8, 15, 0), 0.0)
    pool.submit(1, Request(8, 20, 1), 0.0)
    pool.reprioritize({0: 2}, 0.05)
    preferred, preempted = pool.advance(inf)
    assert (preferred.id, preferred.preempted_sim_s) == (1, 0.0)
    assert preferred.last_token_sim_s == pytest.approx(0.20)
    assert (preempted.id, pool.preemptions()) == (0, 1)
    # Its ninth token came at 0.09 s; then it waits for the other, and computes six more.
    assert preempted.preempted_sim_s == pytest.approx(0.20 - 0.09)
    assert preempted.last_token_sim_s == pytest.approx(0.20 + 0.06)


@KINDS
def test_a_wait_after_a_preemption_ends_with_an_abort(kind: Kind) -> None:
    pool = kind(Profile(w_ms=10, kv_capacity_tokens=3 * 16))
    pool.submit(0, Request(8, 15, 0), 0.0)
    pool.submit(1, Request(8, 20, 1), 0.0)
    pool.abort(1, 0.125)
    (aborted,) = pool.advance(0.13)
    assert (aborted.id, aborted.output_tokens) == (1, 9)
    assert aborted.preempted_sim_s == pytest.approx(0.125 - 0.09)


def test_a_wait_for_memory_counts_as_queueing_not_as_latency() -> None:
    instance = SimulatedInstance(0, Profile(w_ms=10, kv_capacity_tokens=3 * 16), PoolOptions())
    for number, (output, priority) in enumerate([(20, 0), (15, 1)]):
        request = QueuedRequest(number, "p", "f", 8, 0.0, 0.0)
        instance.submit(SimulatedRequest(request, output), priority, 0.0, Start())
    first, preempted = (one for one in instance.advance(1.0) if isinstance(one, ServedRequest))
    assert (first.started_s, first.latency_s) == (0.0, pytest.approx(0.20))
    assert preempted.completed_s == pytest.approx(0.26)
    assert preempted.started_s == pytest.approx(0.20 - 0.09)
    assert preempted.latency_s == pytest.approx(0.09 + 0.06)


def test_time_does_not_go_back() -> None:
    pool = InstancePool(Profile(w_ms=10, kv_capacity_tokens=1024))
    pool.submit(0, Request(8, 3), 1.0)
    with pytest.raises(ValueError, match=r"requests are reprioritized at 0.5.* s, but the pool"):
        pool.reprioritize({0: 1}, 0.5)
