"""The dispatcher `prefix`: its tree finds what prompts share, and it goes where most is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.dispatch.base import Fleet, InstanceSpec
from metropolis.dispatch.prefix import PrefixAffinity
from metropolis.policy.base import QueuedRequest, ServedRequest
from metropolis.types import MetropolisError

Prefix = tuple[tuple[int, int], ...]
prefixes = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=4).map(tuple)


def request(number: int, prefix: Prefix, prompt_tokens: int = 100) -> QueuedRequest:
    return QueuedRequest(number, "p", "f", prompt_tokens, 0.0, 0.0, prefix=prefix)


def shared(one: Prefix, other: Prefix) -> int:
    """Token by token: a text's tokens are numbered."""
    spelled = [[(text, i) for text, tokens in p for i in range(tokens)] for p in (one, other)]
    count = 0
    # a text that goes on where the other's ends has other tokens, as its number begins anew
    for a, b in zip(*spelled, strict=False):
        if a != b:
            break
        count += 1
    return count


@given(st.lists(prefixes, min_size=1, max_size=12), st.integers(1, 3), st.integers(1, 30))
def test_matches_are_those_of_all_that_was_sent(
    told: list[Prefix], instances: int, prompt_tokens: int
) -> None:
    dispatcher = PrefixAffinity(Fleet.uniform(instances, 10_000, 1.0))
    sent: list[tuple[Prefix, int]] = []
    for number, prefix in enumerate(told):
        expected = [
            min(
                prompt_tokens,
                max((shared(prefix, one) for one, at in sent if at == instance), default=0),
            )
            for instance in range(instances)
        ]
        asked = request(number, prefix, prompt_tokens)
        assert dispatcher.matched_tokens(asked) == expected
        placed = dispatcher.place(asked, 0.0)
        assert placed is not None
        sent.append((prefix, placed))


def test_a_conversation_stays_where_it_is_until_that_is_overloaded() -> None:
    dispatcher = PrefixAffinity(Fleet.uniform(2, 10_000, 1.0), skew=2.0)
    first, other = request(0, ((1, 80),)), request(1, ((2, 80),))
    assert [dispatcher.place(one, 0.0) for one in (first, other)] == [0, 1]
    assert dispatcher.place(request(2, ((1, 80), (3, 10))), 0.0) == 0
    assert dispatcher.place(request(3, ((1, 80), (3, 20))), 0.0) == 0
    assert dispatcher.place(request(4, ((1, 80), (4, 10))), 0.0) == 0  # 4 of it beside 2
    assert dispatcher.place(request(5, ((1, 80), (5, 10))), 0.0) == 1  # that were 5
    assert dispatcher.place(request(6, ((3, 30),)), 0.0) == 1  # no match: the least used
    for number in (1, 5, 6):
        dispatcher.completed(ServedRequest(request(number, ()), 1, 0.0, 1.0, 1))
    dispatcher.closed = {0}
    assert dispatcher.place(request(7, ((1, 80),)), 0.0) == 1


@given(st.lists(prefixes, min_size=1, max_size=40))
def test_what_does_not_fit_is_forgotten_leaf_by_leaf(told: list[Prefix]) -> None:
    capacity_tokens = 12
    dispatcher = PrefixAffinity(Fleet.uniform(1, capacity_tokens, 1.0))
    for number, prefix in enumerate(told):
        dispatcher.place(request(number, prefix), 0.0)
        nodes = list(dispatcher._tree._held[0])
        assert (
            sum(node.tokens for node in nodes)
            == dispatcher._tree._held_tokens[0]
            <= capacity_tokens
        )
        roots = dispatcher._tree._root
        for node in nodes:
            assert node.above is not None
            assert node.above is roots or node.above in nodes
            assert node.above.below[node.text][node.tokens] is node
        tokens = sum(tokens for _, tokens in prefix)
        if tokens <= capacity_tokens:
            assert dispatcher.matched_tokens(request(number, prefix)) == [tokens]


def test_tiny_segments_are_bounded_too() -> None:
    dispatcher = PrefixAffinity(Fleet.uniform(1, 32_000, 1.0))
    for number in range(3_000):
        dispatcher.place(request(number, ((number, 1),)), 0.0)
    assert len(dispatcher._tree._held[0]) == len(dispatcher._tree._root.below) == 2_000
    assert dispatcher.matched_tokens(request(3_000, ((999, 1),))) == [0]
    assert dispatcher.matched_tokens(request(3_000, ((1_000, 1),))) == [1]


def test_each_instance_evicts_by_its_own_size() -> None:
    dispatcher = PrefixAffinity(Fleet((InstanceSpec(10, 1.0), InstanceSpec(50, 1.0))))
    for number in range(2):
        dispatcher.place(request(number, ((number, 30),)), 0.0)
    assert dispatcher.matched_tokens(request(2, ((0, 30),))) == [0, 0]
    assert dispatcher.matched_tokens(request(3, ((1, 30),))) == [0, 30]


@given(st.lists(prefixes, min_size=1, max_size=20), st.integers(0, 2))
def test_what_a_lost_instance_had_is_forgotten(told: list[Prefix], lost: int) -> None:
    dispatcher = PrefixAffinity(Fleet.uniform(3, 10_000, 1.0))
    for number, prefix in enumerate(told):
        dispatcher.place(request(number, prefix), 0.0)
    before = [dispatcher.matched_tokens(request(0, prefix)) for prefix in told]
    dispatcher.lost(lost)
    for prefix, matched in zip(told, before, strict=True):
        matched[lost] = 0
        assert dispatcher.matched_tokens(request(0, prefix)) == matched
    for instance in range(3):
        dispatcher.lost(instance)
    assert not dispatcher._tree._root.below
    assert dispatcher._tree._held_tokens == [0, 0, 0]


@pytest.mark.parametrize("options", [{"share": 0.0}, {"share": 1.5}, {"skew": 0.5}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(MetropolisError, match=r"^\w+ is .*; it should be"):
        PrefixAffinity(Fleet.uniform(1, 1, 1.0), **options)
