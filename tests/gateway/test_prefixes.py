"""What the gateway tells dispatchers of how prompts begin."""

from __future__ import annotations

import json
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from metropolis.dispatch.base import Fleet
from metropolis.dispatch.prefix import SharedPrefix
from metropolis.gateway.asked import PIECE_BYTES, Asked, read
from metropolis.gateway.sessions import Sessions

TURNS = ("system", "user", "assistant", "user", "assistant")
contents = st.lists(st.text(max_size=3 * PIECE_BYTES), min_size=1, max_size=5)


def chat(*texts: str) -> Asked:
    messages = [{"role": r, "content": t} for r, t in zip(TURNS, texts, strict=False)]
    return read({}, json.dumps({"messages": messages}).encode())


@given(contents, contents)
def test_prompts_share_pieces_up_to_where_they_part(one: list[str], other: list[str]) -> None:
    first, second = chat(*one).prefix, chat(*other).prefix
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))
    pieces = len(chat(*one[:shared]).prefix) if shared else 0
    assert first[:pieces] == second[:pieces]
    assert (first == second) == (one == other)
    assert chat(*one, *other).prefix[: len(first)] == first


def test_completions_share_pieces_too() -> None:
    one, other = (read({}, json.dumps({"prompt": "a" * 3000 + end}).encode()) for end in "bc")
    assert one.prefix[:2] == other.prefix[:2]
    assert one.prefix[2] != other.prefix[2]


def test_conversations_go_where_they_have_been() -> None:
    dispatcher = SharedPrefix(Fleet(3, 100_000, 20.0))
    sessions = Sessions(60.0, lambda _: None)

    def place(*texts: str) -> int | None:
        return dispatcher.place(sessions.enter(chat(*texts), 0.0), 0.0)

    first, second = ("be terse", "x" * 5000), ("be verbose", "y" * 5000)
    assert (place(*first), place(*second)) == (0, 1)
    assert place(*second, "well", "and then?") == 1
    assert place(*first, "yes", "and then?") == 0
