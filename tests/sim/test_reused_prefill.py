"""Prefills that start from the cache of another instance or model: their time and their limits."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis._core import Completion, InstancePool, Profile, Request
from tests.sim.pool_cases import KINDS, Case, Kind, Seen, cases, run
from tests.sim.test_abort import ABORTS, CUTS


def with_reuse(request: Request, tokens: int, share: float) -> Request:
    return Request(
        request.prompt_tokens,
        request.output_tokens,
        request.priority,
        request.prefix,
        tokens,
        share,
    )


def alone(case: Case, request: Request, *earlier: Request) -> tuple[Completion, float]:
    """The request on an instance where the earlier ones ran, and when it arrived."""
    pool = InstancePool(case.profile, prefix_reuse=True)
    for number, one in enumerate(earlier):
        pool.submit(number, one, 1000.0 * number)
        pool.advance(inf)
    now_sim_s = 1000.0 * len(earlier)
    pool.submit(len(earlier), request, now_sim_s)
    (left,) = pool.advance(inf)
    return left, now_sim_s


@given(cases(), ABORTS, CUTS)
@settings(max_examples=80, deadline=None)
def test_a_whole_share_is_no_reuse(
    case: Case, aborts: list[tuple[float, int, bool]], cuts: list[float]
) -> None:
    found = []
    for tokens in (True, False):
        requests = tuple(
            (now, with_reuse(one, one.reused_tokens * tokens, 1.0)) for now, one in case.requests
        )
        looks: list[Seen] = []
        events, _ = run(replace(case, requests=requests), InstancePool, cuts, aborts, looks)
        found.append((events, looks))
    assert found[0] == found[1]


@given(cases(), st.data())
@settings(max_examples=80, deadline=None)
def test_reuse_without_cost_takes_as_long_as_the_instances_own_cache(
    case: Case, data: st.DataObject
) -> None:
    block, request = case.profile.block_tokens, case.requests[0][1]
    blocks = data.draw(st.integers(0, (request.prompt_tokens - 1) // block))
    text = [(7, request.prompt_tokens)]
    same = Request(request.prompt_tokens, request.output_tokens, 0, text)
    if blocks:
        own, own_sim_s = alone(case, same, Request(blocks * block, 1, 0, [(7, blocks * block)]))
    else:
        own, own_sim_s = alone(case, same, Request(1, 1))
    copied, copied_sim_s = alone(case, with_reuse(same, blocks * block, 0.0), Request(1, 1))
    assert own_sim_s == copied_sim_s
    assert own.first_token_sim_s == copied.first_token_sim_s
    assert own.last_token_sim_s == copied.last_token_sim_s


@given(cases(), st.floats(0, 1), st.floats(0, 1), st.integers(0, 1 << 30))
@settings(max_examples=100, deadline=None)
def test_a_smaller_share_is_never_slower_on_an_idle_instance(
    case: Case, one: float, other: float, tokens: int
) -> None:
    request = case.requests[0][1]
    tokens %= request.prompt_tokens
    first_sim_s = [
        alone(case, with_reuse(request, tokens, share))[0].first_token_sim_s
        for share in sorted((one, other))
    ]
    assert first_sim_s == sorted(first_sim_s)


@KINDS
def test_reused_tokens_cost_their_share_and_use_the_budget(kind: Kind) -> None:
    """60 of 100 tokens at a quarter of 1 ms each, in chunks of 50: 12.5 ms and 2.5 + 40 ms."""
    pool = kind(Profile(g_ms=1.0, kv_capacity_tokens=1000, chunk_tokens=50))
    pool.submit(0, Request(100, 1, 0, (), 60, 0.25), 0.0)
    pool.submit(1, Request(100, 1, 0, (), 60, 0.0), 1000.0)
    first, second = pool.advance(inf)
    assert first.first_token_sim_s == pytest.approx(0.055, rel=1e-12)
    assert second.first_token_sim_s - 1000 == pytest.approx(0.040, rel=1e-12)
    assert pool.status().reused_tokens == 120


@KINDS
def test_the_attention_to_reused_tokens_is_paid_in_full(kind: Kind) -> None:
    """Attention takes 60 * 30 for the reused quarter, and 40 * (60 + 20) for the new tokens."""
    pool = kind(Profile(w_ms=1.0, q_ms=1.0, kv_capacity_tokens=1000))
    pool.submit(0, Request(100, 1, 0, (), 60, 0.25), 0.0)
    (left,) = pool.advance(inf)
    assert left.first_token_sim_s == pytest.approx(0.001 + 0.45 + 3.2, rel=1e-12)


@KINDS
def test_what_the_instance_has_itself_is_not_reused(kind: Kind) -> None:
    pool = kind(Profile(g_ms=1.0, kv_capacity_tokens=1024, block_tokens=4), prefix_reuse=True)
    text = [(3, 100)]
    assert pool.cached_tokens(0, text) == 0
    pool.submit(0, Request(42, 1, 0, [(3, 42)], 20, 0.5), 0.0)
    pool.advance(inf)
    assert pool.cached_tokens(0, text) == 40  # the reused tokens as well
    assert pool.cached_tokens(0, [(3, 11), (4, 50)]) == 8
    pool.submit(1, Request(100, 1, 0, text, 60, 0.5), 1.0)
    (left,) = pool.advance(inf)
    assert left.first_token_sim_s == pytest.approx(1 + 0.010 + 0.040, rel=1e-12)
    status = pool.status()
    assert (status.reused_tokens, status.prefix_hit_tokens) == (20 + 20, 40)


@KINDS
def test_a_preemption_ends_the_reuse(kind: Kind) -> None:
    """Request 1 reuses 15 of 16 tokens, is preempted after one token and computes 17."""
    pool = kind(Profile(g_ms=1.0, kv_capacity_tokens=48, block_tokens=16))
    pool.submit(0, Request(16, 17), 0.0)
    pool.submit(1, Request(16, 2, 1, (), 15, 0.0), 0.0)
    early, late = pool.advance(inf)
    assert pool.preemptions() == 1
    assert (early.id, late.id) == (0, 1)
    assert early.last_token_sim_s == pytest.approx(0.017 + 0.016, rel=1e-12)
    assert late.last_token_sim_s - early.last_token_sim_s == pytest.approx(0.017, rel=1e-12)
    assert pool.status().reused_tokens == 15


@given(cases())
@settings(max_examples=80, deadline=None)
def test_a_small_pool_evicts_what_it_says_it_evicts(case: Case) -> None:
    """What `cached_tokens` promises is what an arriving prompt then finds, if it fits at once."""
    pool = InstancePool(case.profile, prefix_reuse=True)
    for id, (now, request) in zip(case.ids, case.requests, strict=True):
        pool.submit(id, request, now)
    pool.advance(inf)
    for number, (_, request) in enumerate(case.requests):
        held = pool.cached_tokens(0, request.prefix)
        before = pool.status().prefix_hit_tokens
        pool.submit(100 + number, with_reuse(request, 0, 0.0), 1000.0 * (1 + number))
        pool.advance(inf)
        whole = (request.prompt_tokens - 1) // case.profile.block_tokens
        found = pool.status().prefix_hit_tokens - before
        if not pool.preemptions():
            assert found == min(held, whole * case.profile.block_tokens)
