"""The C++ pool against the specification, and its invariants."""

from __future__ import annotations

from dataclasses import asdict
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis._core import InstancePool, Profile, Request, simulate
from metropolis.sim.options import PoolOptions
from metropolis.sim.reference import ReferencePool
from tests.sim.pool_cases import COMPLETION, Case, Event, cases, run


@given(cases())
@settings(max_examples=150, deadline=None)
def test_native_equals_reference(case: Case) -> None:
    native, native_pool = run(case, InstancePool)
    expected, reference_pool = run(case, ReferencePool)
    assert native == expected
    assert native_pool.preemptions() == reference_pool.preemptions()
    assert [native_pool.busy_sim_s(i) for i in range(case.instances)] == [
        reference_pool.busy_sim_s(i) for i in range(case.instances)
    ]


@given(cases(), st.lists(st.floats(0, 5), max_size=40))
@settings(max_examples=80, deadline=None)
def test_slices_of_time_change_nothing(case: Case, cuts: list[float]) -> None:
    assert run(case, InstancePool, tuple(cuts))[0] == run(case, InstancePool)[0]


@given(cases())
@settings(max_examples=80, deadline=None)
def test_advancing_from_event_to_event(case: Case) -> None:
    """Time never decreases, no request completes before the announced event, and the run ends."""
    pool = case.pool(InstancePool)
    for id, (now, request) in zip(case.ids, case.requests, strict=True):
        pool.submit(id, request, now)
    out: list[Event] = []
    last = -inf
    while pool.outstanding():
        until = pool.next_event_sim_s()
        assert last < until < inf
        completions = pool.advance(until)
        assert all(c.last_token_sim_s == until for c in completions)
        out += [tuple(getattr(c, name) for name in COMPLETION) for c in completions]
        last = until
    assert pool.next_event_sim_s() == inf
    assert out == run(case, InstancePool)[0]


@given(cases(reuse=False))
@settings(max_examples=80, deadline=None)
def test_every_request_gets_its_tokens_in_possible_time(case: Case) -> None:
    case.profile.k_mixed_ms = 0.0  # else a mixed iteration can be cheaper than a lone decode
    out, pool = run(case, InstancePool)
    assert sorted(id for id, *_ in out) == sorted(case.ids)
    left = [(last, id) for id, *_, last, _, _ in out]
    assert left == sorted(left)
    by_id = dict(zip(case.ids, case.requests, strict=True))
    for id, instance, output_tokens, first, last, preempted, aborted in out:
        arrival, request = by_id[id]
        assert (output_tokens, aborted) == (request.output_tokens, False)
        assert 0 <= instance < case.instances
        assert arrival < first <= last
        assert (first == last) == (request.output_tokens == 1)
        if not case.options.prefix_reuse:
            chunked = case.options.chunked_prefill
            least = InstancePool.isolated_sim_s(case.profile, request, chunked)
            assert last - arrival - preempted >= least * (1 - 1e-12)
        assert preempted >= 0
        assert pool.preemptions() or not preempted
    end = max(last for last, _ in left)
    for i in range(case.instances):
        assert pool.busy_sim_s(i) <= end - case.requests[0][0] + 1e-12


@given(cases(reuse=False))
@settings(max_examples=80, deadline=None)
def test_tokens_are_conserved(case: Case) -> None:
    """With one millisecond per computed token and nothing else, busy time counts tokens."""
    profile = Profile(
        g_ms=1.0,
        kv_capacity_tokens=case.profile.kv_capacity_tokens,
        block_tokens=case.profile.block_tokens,
        chunk_tokens=case.profile.chunk_tokens,
        max_sequences=case.profile.max_sequences,
    )
    reuses = case.options.prefix_reuse
    counted = Case(profile, case.instances, PoolOptions(reuses), case.requests, case.ids)
    _, pool = run(counted, InstancePool)
    computed_tokens = 1000 * sum(pool.busy_sim_s(i) for i in range(case.instances))
    tokens = sum(r.prompt_tokens + r.output_tokens - 1 for _, r in case.requests)
    if pool.preemptions():
        assert reuses or computed_tokens > tokens - 1e-6
    elif reuses:
        assert computed_tokens < tokens + 1e-6
    else:
        assert abs(computed_tokens - tokens) < 1e-6


@given(cases())
@settings(max_examples=80, deadline=None)
def test_a_lone_request_takes_its_isolated_time(case: Case) -> None:
    request = case.requests[0][1]
    case.profile.d_ms = case.profile.e_ms = 0.0  # the isolated time has no decisions of decoding
    schedule, chunked = case.options.schedule, case.options.chunked_prefill
    pool = InstancePool(case.profile, schedule=schedule, chunked_prefill=chunked)
    pool.submit(0, request, 0.0)
    (completion,) = pool.advance(inf)
    alone = InstancePool.isolated_sim_s(case.profile, request, chunked)
    assert completion.last_token_sim_s == alone


@given(cases(), st.integers(1, 200), st.integers(1, 100))
def test_the_duration_of_an_iteration_equals_the_pools(
    case: Case, prompt: int, output: int
) -> None:
    """A lone request is its prefill, of one chunk, and an iteration for each further token."""
    profile = case.profile
    profile.kv_capacity_tokens, profile.chunk_tokens = 10_000, 1000
    time_s = InstancePool.iteration_sim_s
    whole = time_s(profile, 0, 0, prompt)
    whole += sum(time_s(profile, 1, prompt + token) for token in range(1, output))
    alone = InstancePool.isolated_sim_s(profile, Request(prompt, output))
    assert whole == pytest.approx(alone, rel=1e-12)
    with pytest.raises(ValueError, match="none may be negative"):
        time_s(profile, -1, 0)


@given(cases(reuse=False), st.integers(1, 6))
@settings(max_examples=80, deadline=None)
def test_simulate_is_the_pool_in_one_call(case: Case, concurrency: int) -> None:
    firsts = [[*r.prefix, ()] for _, r in case.requests]  # a column holds one segment
    columns = {
        "arrival_sim_s": [now for now, _ in case.requests],
        "prompt_tokens": [r.prompt_tokens for _, r in case.requests],
        "output_tokens": [r.output_tokens for _, r in case.requests],
        "priority": [r.priority for _, r in case.requests],
        "prefix_id": [p[0] if p else -1 for p, *_ in firsts],
        "prefix_tokens": [p[1] if p else 0 for p, *_ in firsts],
        "instances": case.instances,
        **{name: value for name, value in asdict(case.options).items() if name != "surplus"},
    }
    requests = tuple(
        (now, Request(r.prompt_tokens, r.output_tokens, r.priority, r.prefix[:1]))
        for now, r in case.requests
    )
    in_order = Case(case.profile, case.instances, case.options, requests, tuple(sorted(case.ids)))
    expected, pool = run(in_order, InstancePool)
    result = simulate(case.profile, **columns)
    for id, instance, _, first, last, *_ in expected:
        assert result["instance"][id] == instance
        assert result["first_token_sim_s"][id] == first
        assert result["last_token_sim_s"][id] == last
    assert result["preemptions"] == pool.preemptions()

    closed = simulate(case.profile, **columns, concurrency=concurrency)
    starts, ends = closed["submitted_sim_s"], closed["last_token_sim_s"]
    assert (starts >= np.array(columns["arrival_sim_s"])).all()
    for i, start in enumerate(starts):
        assert (ends[:i] > start).sum() < concurrency


def test_bad_input_is_refused() -> None:
    profile = Profile(w_ms=1.0, kv_capacity_tokens=64)
    with pytest.raises(ValueError, match="request 3 needs 65 KV tokens; an instance holds 64"):
        InstancePool(profile).submit(3, Request(64, 2), 0.0)
    with pytest.raises(ValueError, match="request 3 has 64 prompt and 0 output tokens; both must"):
        InstancePool(profile).submit(3, Request(64, 0), 0.0)
    with pytest.raises(ValueError, match="request 3 has a prefix segment 9 of 0 tokens"):
        InstancePool(profile).submit(3, Request(8, 1, 0, [(9, 0)]), 0.0)
    with pytest.raises(ValueError, match="no more than prompt and output"):
        InstancePool(profile).submit(3, Request(8, 1, 0, [(9, 5), (8, 5)]), 0.0)
    with pytest.raises(ValueError, match="request 3 reuses 8 of 8 prompt tokens; at least one"):
        InstancePool(profile).submit(3, Request(8, 1, reused_tokens=8), 0.0)
    with pytest.raises(ValueError, match="request 3 reuses -1 of 8 prompt tokens"):
        InstancePool(profile).submit(3, Request(8, 1, reused_tokens=-1), 0.0)
    for share in (-0.1, 1.1, nan):
        with pytest.raises(ValueError, match=r"has a reused_share of .*; it must be from 0 to 1"):
            InstancePool.isolated_sim_s(profile, Request(8, 1, 0, (), 4, share))
    with pytest.raises(ValueError, match="the text has a prefix segment 9 of 0 tokens"):
        InstancePool(profile).cached_tokens(0, [(9, 0)])
    with pytest.raises(ValueError, match="there is no instance 1; the pool has 1"):
        InstancePool(profile).cached_tokens(1, [])
    with pytest.raises(ValueError, match="the request needs 65 KV tokens; an instance holds 64"):
        InstancePool.check_fits(profile, Request(64, 2))
    with pytest.raises(ValueError, match="block_tokens is 0, but must be at least 1"):
        InstancePool.check_fits(Profile(kv_capacity_tokens=64, block_tokens=0), Request(1, 1))
    with pytest.raises(ValueError, match="both must be at least 1"):
        InstancePool.isolated_sim_s(profile, Request(64, 0))
    with pytest.raises(ValueError, match="at least 1"):
        InstancePool(profile, instances=0)
    with pytest.raises(ValueError, match="field b_ms is -1"):
        InstancePool(Profile(w_ms=1.0, b_ms=-1.0, kv_capacity_tokens=64))
    with pytest.raises(
        ValueError, match="preemption is 'move', but must be recompute, swap or swap_all"
    ):
        InstancePool(profile, preemption="move")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="swap needs the profile fields kv_bytes_per_token"):
        InstancePool(profile, preemption="swap")
    with pytest.raises(ValueError, match="decision_iterations is 0, but must be at least 1"):
        InstancePool(profile, decision_iterations=0)
    with pytest.raises(ValueError, match="schedule is 'first', but must be mixed or prefill_first"):
        InstancePool(profile, schedule="first")  # type: ignore[arg-type]
    for watermark in (-0.1, 1.0, nan):
        with pytest.raises(ValueError, match=r"watermark is .*, but must be at least"):
            InstancePool(profile, watermark=watermark)
    with pytest.raises(ValueError, match="request 3 needs 67 KV tokens; an instance holds 64"):
        InstancePool(profile, decision_iterations=4).submit(3, Request(64, 1), 0.0)
    with pytest.raises(ValueError, match="column output_tokens has 1 rows, arrival_sim_s has 2"):
        simulate(profile, [0.0, 1.0], [1, 1], [1])
    with pytest.raises(ValueError, match="arrival_sim_s of row 1 is before"):
        simulate(profile, [1.0, 0.0], [1, 1], [1, 1])


@pytest.mark.campaign
@given(cases())
@settings(max_examples=20_000, deadline=None)
def test_native_equals_reference_at_length(case: Case) -> None:
    assert run(case, InstancePool)[0] == run(case, ReferencePool)[0]
