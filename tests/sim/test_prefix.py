"""The prefix cache: hits and evictions."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from metropolis._core import Completion, InstancePool, Profile, Request

PROFILE = Profile(g_ms=1.0, kv_capacity_tokens=64, block_tokens=4)
"""One millisecond per computed token, and no other cost."""

SEGMENTS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12)), max_size=4)


def ended(pool: InstancePool) -> Completion:
    (completion,) = pool.advance(inf)
    return completion


def hits(pool: InstancePool, request: Request, now: float = 0.0) -> int:
    """The prefix hit tokens of a prompt that arrives alone."""
    before = pool.status().prefix_hit_tokens
    pool.submit(0, request, now)
    ended(pool)
    return pool.status().prefix_hit_tokens - before


def test_calls_of_a_program_hit_its_earlier_prompts_and_answers() -> None:
    pool = InstancePool(PROFILE, prefix_reuse=True)
    system, mine, theirs = (0, 10), 1, 2
    assert hits(pool, Request(14, 6, 0, [system, (mine, 10)]), 0.0) == 0
    # 19 of its 20 tokens are in the cache, the last is not: four blocks
    assert hits(pool, Request(30, 2, 0, [system, (mine, 22)]), 1.0) == 16
    # another program shares two whole blocks of the ten tokens
    assert hits(pool, Request(30, 2, 0, [system, (theirs, 20)]), 2.0) == 8
    # an answer without a known text is not kept
    assert hits(pool, Request(12, 8, 0, [(3, 12)]), 3.0) == 0
    assert hits(pool, Request(24, 1, 0, [(3, 24)]), 4.0) == 12


def test_a_resubmitted_request_recomputes_at_most_one_block() -> None:
    pool = InstancePool(PROFILE, prefix_reuse=True)
    text = [(5, 60)]
    pool.submit(0, Request(20, 40, 0, text), 0.0)
    pool.advance(0.0295)
    pool.abort(0, 0.0295)
    left = ended(pool)
    assert left.aborted
    assert left.output_tokens == 11
    pool.submit(0, Request(20 + 11, 40 - 11, 0, text), 1.0)
    again = ended(pool)
    # 30 tokens were computed and 28 of them lie in whole blocks
    assert pool.status().prefix_hit_tokens == 28
    assert round(1000 * (again.last_token_sim_s - 1.0), 6) == (31 - 28) + (40 - 11 - 1)


def test_leaves_are_evicted_before_their_parents_and_the_oldest_first() -> None:
    pool = InstancePool(PROFILE, prefix_reuse=True)  # 16 blocks
    for n, text in enumerate((1, 2, 3)):
        hits(pool, Request(20, 1, 0, [(0, 8), (text, 12)]), float(n))
    assert pool.status().kv_cached_blocks == 2 + 3 * 3
    hits(pool, Request(28, 1, 0), 3.0)  # 7 blocks, 5 of them free: the two last of the first text
    assert pool.status().kv_cached_blocks == 9
    assert hits(pool, Request(20, 1, 0, [(0, 8), (2, 12)]), 4.0) == 16  # one token is computed
    assert hits(pool, Request(20, 1, 0, [(0, 8), (1, 12)]), 5.0) == 12


def test_without_prefix_reuse_nothing_is_cached() -> None:
    pool = InstancePool(PROFILE)
    request = Request(20, 4, 0, [(1, 24)])
    assert [hits(pool, request, now) for now in (0.0, 1.0)] == [0, 0]
    assert pool.status().kv_cached_blocks == 0


@given(st.lists(st.tuples(SEGMENTS, st.integers(1, 8), st.integers(1, 8)), max_size=12))
def test_with_enough_memory_a_prompt_hits_its_longest_common_prefix(
    calls: list[tuple[list[tuple[int, int]], int, int]],
) -> None:
    """Requests run one after the other; hits are the whole blocks of all tokens but the last."""
    pool = InstancePool(Profile(g_ms=1.0, kv_capacity_tokens=10_000, block_tokens=4), 1, True)
    computed: list[list[tuple[int, int]]] = []
    for n, (segments, more, output) in enumerate(calls):
        tokens = [(text, i) for text, length in segments for i in range(length)]
        whole = len(tokens) + more + output
        prompt = whole - output
        expected = 0
        for other in computed:
            shared = 0
            for mine, theirs in zip(tokens[: prompt - 1], other, strict=False):
                if mine != theirs:
                    break
                shared += 1
            expected = max(expected, shared // 4 * 4)
        assert hits(pool, Request(prompt, output, 0, segments), float(n)) == expected
        computed.append(tokens[: whole - 1])
