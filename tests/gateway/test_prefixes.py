"""The prompt prefixes that the gateway passes to dispatchers."""

from __future__ import annotations

import json
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.dispatch.base import Fleet
from metropolis.dispatch.prefix import PrefixAffinity
from metropolis.gateway.programs import ProgramTracker
from metropolis.gateway.prompt_pieces import PIECE_CHARACTERS, PIECES_MAX
from metropolis.gateway.request_parsing import ClientRequest
from tests.gateway.parsing import read

TURNS = ("system", "user", "assistant", "user", "assistant")
contents = st.lists(st.text(max_size=3 * PIECE_CHARACTERS), min_size=1, max_size=5)


def chat(*texts: str) -> ClientRequest:
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


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}


def tokens_of(**body: Any) -> tuple[int, int]:
    """Return the estimated tokens of the prompt and of its prefix."""
    asked = read({}, json.dumps(body).encode())
    return asked.prompt_tokens, sum(tokens for _, tokens in asked.prefix)


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"messages": user("a" * 8000)}, 2000),
        ({"messages": user("大" * 8000)}, 2000),
        ({"messages": user([{"type": "text", "text": "a" * 4000}, PICTURE])}, 1000),
        ({"prompt": "a" * 4000}, 1000),
        ({"prompt": ["a" * 2000, "b" * 2000]}, 1000),
        ({"prompt": [17] * 1000}, 1000),
        ({"messages": [{"role": "assistant", "tool_calls": [{"name": "f" * 4000}]}]}, 1000),
        ({"messages": user([{"type": "tool_use", "input": {"x": "a" * 4000}}])}, 1000),
        ({"messages": user([{"type": "tool_result", "content": "a" * 4000}])}, 1000),
        ({"input": [{"type": "function_call", "arguments": "a" * 4000}]}, 1000),
        ({"input": [{"type": "function_call_output", "output": "a" * 4000}]}, 1000),
        ({"input": [{"type": "function_call_output", "output": [PICTURE]}]}, 0),
        ({"messages": user("a"), "tools": [{"description": "大" * 4000}]}, 1000),
    ],
)
def test_the_prefix_is_as_long_as_the_prompt(body: dict[str, Any], tokens: int) -> None:
    prompt_tokens, prefix_tokens = tokens_of(**body)
    assert prompt_tokens == prefix_tokens
    assert tokens <= prompt_tokens < tokens + 20


def test_pictures_are_told_apart_and_wipe_nothing_out() -> None:
    other = {"type": "image_url", "image_url": {"url": PICTURE["image_url"]["url"] + "B"}}
    pictures = [user([{"type": "text", "text": "see"}, one]) for one in (PICTURE, other)]
    one, two = (read({}, json.dumps({"messages": chat}).encode()) for chat in pictures)
    assert one.prefix[:-1] == two.prefix[:-1]
    assert one.prefix[-1] != two.prefix[-1]
    assert one.opening != two.opening


def test_other_tools_are_another_prefix() -> None:
    one, two = (
        read({}, json.dumps({"messages": user("a"), "tools": [{"name": name}]}).encode())
        for name in "ab"
    )
    assert one.prefix[0] != two.prefix[0]
    assert one.opening == two.opening


@pytest.mark.parametrize(
    "prompt", ["a" * 3_000_000, [1] * 600_000, ["a"] * 3000, [["a"] * 1500] * 3]
)
def test_a_prefix_is_bounded_and_the_prompts_length_is_not(prompt: Any) -> None:
    one, other = (read({}, json.dumps({"prompt": [prompt, end]}).encode()) for end in "ab")
    assert len(one.prefix) == PIECES_MAX
    assert one.prefix == other.prefix
    assert one.prompt_tokens > sum(tokens for _, tokens in one.prefix)


def test_conversations_go_where_they_have_been() -> None:
    dispatcher = PrefixAffinity(Fleet.uniform(3, 100_000, 20.0))
    programs = ProgramTracker(60.0, lambda _: None)

    def place(*texts: str) -> int | None:
        return dispatcher.place(programs.enter(chat(*texts), 0.0), 0.0)

    first, second = ("be terse", "x" * 5000), ("be verbose", "y" * 5000)
    assert (place(*first), place(*second)) == (0, 1)
    assert place(*second, "well", "and then?") == 1
    assert place(*first, "yes", "and then?") == 0
