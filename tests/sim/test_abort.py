"""Aborted requests: C++ against the specification, and the effects of an abort."""

from __future__ import annotations

from collections import Counter
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis._core import InstancePool, Profile, Request
from metropolis.sim.options import Preemption
from metropolis.sim.reference import ReferencePool
from tests.sim.pool_cases import KINDS, Case, Change, Kind, Seen, cases, run

TIMES = st.floats(0, 3) | st.integers(0, 120).map(lambda n: n / 64)  # the grid of some cases
ABORTS = st.lists(st.tuples(TIMES, st.integers(0, 24), st.booleans()), max_size=30)
CUTS = st.lists(TIMES, max_size=30)
DISCARDS = st.lists(st.tuples(TIMES, st.integers(0, 24)), max_size=8)
CHANGES = st.lists(
    st.tuples(TIMES, st.dictionaries(st.integers(0, 24), st.integers(0, 3), max_size=8)), max_size=8
)


@given(cases(), ABORTS, CUTS, CHANGES, DISCARDS)
@settings(max_examples=150, deadline=None)
def test_native_equals_reference(
    case: Case,
    aborts: list[tuple[float, int, bool]],
    cuts: list[float],
    changes: list[Change],
    discards: list[tuple[float, int]],
) -> None:
    native: list[Seen] = []
    expected: list[Seen] = []
    of_native, native_pool = run(case, InstancePool, cuts, aborts, native, changes, discards)
    of_reference, reference_pool = run(
        case, ReferencePool, cuts, aborts, expected, changes, discards
    )
    assert native == expected
    assert of_native == of_reference
    assert native_pool.preemptions() == reference_pool.preemptions()
    assert [native_pool.busy_sim_s(i) for i in range(case.instances)] == [
        reference_pool.busy_sim_s(i) for i in range(case.instances)
    ]


@given(cases(), ABORTS, st.lists(st.floats(0, 5), max_size=40))
@settings(max_examples=80, deadline=None)
def test_every_request_leaves_once_and_the_memory_is_free(
    case: Case, aborts: list[tuple[float, int, bool]], cuts: list[float]
) -> None:
    looks: list[Seen] = []
    out, pool = run(case, InstancePool, cuts, [(now, i, False) for now, i, _ in aborts], looks)
    assert sorted(id for id, *_ in out) == sorted(case.ids)
    by_id = dict(zip(case.ids, case.requests, strict=True))
    for id, _, output_tokens, first, last, preempted, aborted in out:
        arrival, request = by_id[id]
        assert (output_tokens == request.output_tokens) == (not aborted)
        assert (first == inf) == (output_tokens == 0)
        assert last - arrival >= preempted >= 0
    assert sum(aborted for *_, aborted in out) <= sum(not look.refused for look in looks)
    assert pool.outstanding() == 0
    for i in range(case.instances):
        assert (pool.status(i).kv_used_blocks, pool.status(i).running, pool.status(i).waiting) == (
            0, 0, 0,
        )  # fmt: skip


def test_an_aborted_running_request_leaves_with_its_tokens_at_the_end_of_the_iteration() -> None:
    pool = InstancePool(Profile(w_ms=10, kv_capacity_tokens=1024))
    pool.submit(7, Request(8, 100), 0.0)
    assert pool.advance(0.034) == []
    assert pool.progress() == {7: 3}
    pool.abort(7, 0.034)
    assert pool.advance(0.039) == []  # the fourth token is under way
    (left,) = pool.advance(0.041)
    assert (left.id, left.output_tokens, left.aborted) == (7, 4, True)
    assert left.last_token_sim_s == pytest.approx(0.04)


def test_an_aborted_waiting_request_leaves_at_once_and_admits_others() -> None:
    pool = InstancePool(Profile(w_ms=10, kv_capacity_tokens=64))
    pool.submit(0, Request(16, 17), 0.0)
    pool.submit(1, Request(60, 1), 0.001)  # does not fit
    pool.submit(2, Request(16, 1), 0.002)  # would, but waits behind it
    assert pool.status().waiting == 2
    pool.abort(1, 0.055)
    (left,) = pool.advance(0.055)
    assert (left.id, left.output_tokens, left.last_token_sim_s) == (1, 0, 0.055)
    assert (left.aborted, left.first_token_sim_s) == (True, inf)
    (next_one,) = pool.advance(0.1)
    assert (next_one.id, next_one.aborted) == (2, False)
    assert next_one.last_token_sim_s == pytest.approx(0.07)


def test_the_last_token_comes_before_the_abort() -> None:
    pool = InstancePool(Profile(w_ms=10, kv_capacity_tokens=1024))
    pool.submit(0, Request(8, 1), 0.0)
    pool.abort(0, 0.005)
    (left,) = pool.advance(inf)
    assert (left.output_tokens, left.aborted) == (1, False)


@KINDS
def test_an_unknown_request_is_refused(kind: Kind) -> None:
    pool = kind(Profile(w_ms=10, kv_capacity_tokens=1024))
    pool.submit(0, Request(8, 3), 0.0)
    with pytest.raises(ValueError, match="request 1 cannot be aborted"):
        pool.abort(1, 0.001)
    pool.abort(0, 0.002)
    with pytest.raises(ValueError, match="request 0 cannot be aborted"):
        pool.abort(0, 0.003)
    pool.advance(inf)
    with pytest.raises(ValueError, match="request 0 cannot be aborted"):
        pool.abort(0, 5.0)
    pool.submit(1, Request(8, 3), 1.0)  # refusals do not advance the time


@KINDS
def test_a_kept_request_resumes_without_a_prefill(kind: Kind) -> None:
    """Beside one that decodes, it makes no iteration a prefill, which a decision would follow."""
    profile = Profile(
        w_ms=10.0, c_ms=5.0, kv_capacity_tokens=1024,
        kv_bytes_per_token=1, pcie_gb_per_s=1e6, host_gb=1.0,
    )  # fmt: skip
    pool = kind(profile, preemption="swap", decision_iterations=4)
    pool.submit(0, Request(8, 100), 0.0)
    pool.submit(1, Request(8, 100), 0.0)
    pool.abort(1, 0.021, keep=True)  # two prefills in 20 ms, then four iterations
    (left,) = pool.advance(0.07)
    assert (left.output_tokens, left.last_token_sim_s) == (5, pytest.approx(0.06))
    pool.submit(1, Request(8 + 5, 95), 0.07)
    assert pool.advance(0.101) == []  # the window ends at 100 ms
    pool.abort(1, 0.102)
    (again,) = pool.advance(0.2)
    assert again.output_tokens == 4  # a prefill would take 15 ms, and yield one
    assert again.first_token_sim_s == pytest.approx(0.11)
    assert again.last_token_sim_s == pytest.approx(0.14)


@KINDS
@pytest.mark.parametrize(
    ("surplus", "evicts", "output_tokens", "tokens"),
    [(False, False, 95, 4), (True, False, 95, 4 + 2), (True, True, 95, 4), (True, False, 2, 2)],
)
def test_a_kept_request_decodes_where_another_has_completed(
    kind: Kind, surplus: bool, evicts: bool, output_tokens: int, tokens: int
) -> None:
    """Until the decision, if its KV is on the GPU, and all but its last token."""
    profile = Profile(
        w_ms=10.0, kv_capacity_tokens=160, block_tokens=4, max_sequences=2,
        kv_bytes_per_token=1, pcie_gb_per_s=1e6, host_gb=1.0,
    )  # fmt: skip
    pool = kind(profile, 1, True, "swap", decision_iterations=4, surplus=surplus)
    pool.submit(0, Request(8, 5 + output_tokens, 0, [(0, 13 + output_tokens)]), 0.0)
    pool.submit(1, Request(8, 50), 0.0)
    pool.abort(0, 0.021, keep=True)
    (left,) = pool.advance(0.05)
    assert left.output_tokens == 5
    prompt = 136 if evicts else 8
    pool.submit(2, Request(prompt, 3), 0.05)  # complete at 80 ms, the decision is at 100 ms
    assert [left.id for left in pool.advance(0.1)] == [2]
    pool.submit(0, Request(13, output_tokens, 0, [(0, 13 + output_tokens)]), 0.1)
    if output_tokens > tokens:
        pool.abort(0, 0.101)
    (again,) = pool.advance(0.141)
    assert (again.id, again.output_tokens) == (0, tokens)
    assert again.first_token_sim_s == pytest.approx(0.11)


def test_time_does_not_go_back() -> None:
    pool = InstancePool(Profile(w_ms=10, kv_capacity_tokens=1024))
    pool.submit(0, Request(8, 3), 1.0)
    with pytest.raises(ValueError, match=r"request 0 is aborted at 0.5.* s, but the pool"):
        pool.abort(0, 0.5)


@given(st.integers(1, 200), st.lists(st.integers(1, 30), max_size=12))
def test_abort_and_resubmit_yields_every_token(output: int, quanta: list[int]) -> None:
    """Preemption on an unmodified engine: the prompt with the tokens so far is submitted again."""
    pool = InstancePool(Profile(w_ms=10, kv_capacity_tokens=1024))
    tokens: Counter[int] = Counter()
    now, left = 0.0, output
    for quantum in [*quanta, output + 1]:
        pool.submit(0, Request(10 + output - left, left), now)
        until = now + quantum * 0.01 - 0.005
        if pool.next_event_sim_s() < inf and not (ended := pool.advance(until)):
            pool.abort(0, until)
            ended = pool.advance(inf)
        (completion,) = ended
        tokens[0] += completion.output_tokens
        left -= completion.output_tokens
        now = max(completion.last_token_sim_s, until)
        if not left:
            break
    assert tokens[0] == output


def four_blocks(host_gb: float = 1.0) -> Profile:
    """Four blocks of four tokens; computing a token, or copying a block, takes a millisecond."""
    return Profile(
        g_ms=1.0, kv_capacity_tokens=16, block_tokens=4,
        kv_bytes_per_token=250_000, pcie_gb_per_s=1.0, host_gb=host_gb,
    )  # fmt: skip


@KINDS
@pytest.mark.parametrize(("host_gb", "ends_ms", "kept"), [(1.0, 107, 3), (1e-3, 111, 0)])
def test_a_request_kept_by_the_host_resumes_with_its_blocks(
    kind: Kind, host_gb: float, ends_ms: float, kept: int
) -> None:
    pool = kind(four_blocks(host_gb), preemption="swap")
    pool.submit(0, Request(8, 4), 0.0)
    pool.abort(0, 0.0095, keep=True)
    (left,) = pool.advance(0.1)
    assert (left.output_tokens, left.last_token_sim_s) == (3, pytest.approx(0.01))
    assert pool.status().kv_host_blocks == kept
    pool.submit(0, Request(11, 1), 0.1)  # with room: 3 blocks out and in, and a token to compute
    (ended,) = pool.advance(inf)
    assert 1000 * ended.last_token_sim_s == pytest.approx(ends_ms)
    assert (pool.status().kv_host_blocks, pool.status().swapped_blocks) == (0, 2 * kept)


@KINDS
@pytest.mark.parametrize(("preemption", "copied"), [("swap", 1), ("swap_all", 3)])
def test_all_blocks_are_copied_although_the_cache_has_them(
    kind: Kind, preemption: Preemption, copied: int
) -> None:
    pool = kind(four_blocks(), prefix_reuse=True, preemption=preemption)
    pool.submit(0, Request(8, 4, 0, [(0, 12)]), 0.0)
    pool.abort(0, 0.0095, keep=True)
    pool.advance(0.1)
    assert (pool.status().kv_cached_blocks, pool.status().swapped_blocks) == (2, copied)
    pool.submit(0, Request(11, 1, 0, [(0, 12)]), 0.1)
    (ended,) = pool.advance(inf)
    assert 1000 * ended.last_token_sim_s == pytest.approx(100 + 1 + 2 * copied)
    assert pool.status().swapped_blocks == 2 * copied


@KINDS
@pytest.mark.parametrize("discarded_sim_s", [0.0096, 0.1])
def test_a_discarded_request_is_kept_no_longer(kind: Kind, discarded_sim_s: float) -> None:
    """The host discards the KV of a request that is moving out, and of one that has moved."""
    pool = kind(four_blocks(), preemption="swap")
    pool.submit(0, Request(8, 4), 0.0)
    pool.abort(0, 0.0095, keep=True)
    pool.discard(0, discarded_sim_s)
    assert len(pool.advance(0.1)) == 1
    assert pool.status().kv_host_blocks == 0
    pool.submit(0, Request(11, 1), 0.1)
    (ended,) = pool.advance(inf)
    # blocks that had been copied out are charged
    out_ms = 3 if discarded_sim_s == 0.1 else 0
    assert 1000 * ended.last_token_sim_s == pytest.approx(100 + 11 + out_ms)
