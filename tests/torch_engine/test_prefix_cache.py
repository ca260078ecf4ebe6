"""The prefix cache against a list of all prefixes that were kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from metropolis.torch_engine.kv import KV, tokens_in
from metropolis.torch_engine.prefix_cache import OUTDATED_MAX, PrefixCache

TOKEN_BYTES = 2 * 8
"""A key and a value in int64."""
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=12)
models = st.sampled_from(["base", "chat"])


def kv_of(model: str, tokens: Sequence[int]) -> KV:
    """A key and a value for each token, which depend on all tokens up to it, and on the model."""
    each = [hash((model, *tokens[: end + 1])) for end in range(len(tokens))]
    values = torch.tensor(each).reshape(1, 1, -1, 1)
    return KV([values], [-values])


def joined(parts: Sequence[KV]) -> list[int]:
    return [int(key) for part in parts for key in part.keys[0].flatten()]


def held(kept: Sequence[tuple[str, Sequence[int]]], model: str, tokens: Sequence[int]) -> int:
    """The longest prefix of `tokens` that one of the kept prompts has."""
    lengths = [
        next((n for n, (a, b) in enumerate(zip(one, tokens, strict=False)) if a != b), None)
        or (min(len(one), len(tokens)) if one[0] == tokens[0] else 0)
        for name, one in kept
        if name == model
    ]
    return max(lengths, default=0)


@given(st.lists(st.tuples(models, prompts), max_size=15), models, prompts)
def test_what_was_kept_is_found(
    kept: list[tuple[str, list[int]]], model: str, wanted: list[int]
) -> None:
    cache = PrefixCache()
    for name, tokens in kept:
        cache.keep(name, tokens, kv_of(name, tokens))
    parts = cache.find(model, wanted)
    length = tokens_in(parts) if parts else 0
    assert length == held(kept, model, wanted)
    assert joined(parts) == joined([kv_of(model, wanted)])[:length]
    distinct = {(name, *tokens[:n]) for name, tokens in kept for n in range(1, len(tokens) + 1)}
    assert cache.bytes == TOKEN_BYTES * len(distinct)


@given(st.lists(st.tuples(models, prompts, st.integers(0, 300)), min_size=1, max_size=25))
def test_caches_stay_within_the_limit(kept: list[tuple[str, list[int], int]]) -> None:
    cache = PrefixCache()
    for name, tokens, most in kept:
        cache.keep(name, tokens, kv_of(name, tokens))
        cache.shrink(most)
        assert cache.bytes <= most
        parts = cache.find(name, tokens)
        assert joined(parts) == joined([kv_of(name, tokens)])[: tokens_in(parts) if parts else 0]
    cache.shrink(0)
    assert cache.bytes == 0
    assert not any(cache.find(name, tokens) for name, tokens, _ in kept)


def test_the_least_recently_used_is_evicted_first() -> None:
    cache = PrefixCache()
    for tokens in ([0, 0], [1, 1], [2, 2]):
        cache.keep("base", tokens, kv_of("base", tokens))
    cache.find("base", [0, 0])
    cache.shrink(4 * TOKEN_BYTES)
    assert [bool(cache.find("base", [first])) for first in range(3)] == [True, False, True]


def test_a_prefix_outlives_what_follows_it() -> None:
    """Leaves are evicted before the tokens that they continue."""
    cache = PrefixCache()
    for tokens in ([0, 0, 0], [0, 0, 1], [0, 0, 2]):
        cache.keep("base", tokens, kv_of("base", tokens))
    cache.shrink(3 * TOKEN_BYTES)
    assert tokens_in(cache.find("base", [0, 0, 2])) == 3
    assert tokens_in(cache.find("base", [0, 0, 0])) == 2


def test_kept_tensors_are_copies() -> None:
    cache, kv = PrefixCache(), kv_of("base", [0, 1, 2])
    kv = KV(kv.keys, kv.values, {4: torch.ones(1, 3, 2)})
    cache.keep("base", [0, 1, 2], kv)
    expected = joined([kv])
    for tensor in (*kv.keys, *kv.values, *kv.inputs.values()):
        tensor.zero_()
    [part] = cache.find("base", [0, 1, 2])
    assert joined([part]) == expected
    assert bool(part.values[0].all())
    assert bool(part.inputs[4].all())


def test_what_is_counted_is_what_is_held() -> None:
    """Splits and evictions leave no tensors behind."""
    cache, tokens = PrefixCache(), list(range(200))
    for number in range(3000):
        kept = [*tokens[: 1 + number * 7 % 199], 1000 + number]
        cache.keep("base", kept, kv_of("base", kept))
        if number % 100 == 99:
            cache.shrink(250 * TOKEN_BYTES)
    held = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for _, _, node in cache._leaves
        for tensor in (*node.kv.keys, *node.kv.values)
    }
    assert sum(held.values()) <= cache.bytes
    assert len(cache._leaves) <= 2 * 250 + OUTDATED_MAX
