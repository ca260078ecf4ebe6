"""The backends without a server, scripted and replay, and their requests."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.llm import Completion, Journal, MalformedError, RefusedError, Request
from metropolis.llm.backends.replay import Replay
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.journal import key_of
from metropolis.llm.tokens import approximate_tokens, prompt_tokens_max, truncated
from metropolis.types import MetropolisError
from tests.llm.fakes import request
from tests.llm.virtual_loop import run_virtually

PLAN = {
    "type": "object",
    "properties": {
        "where": {"enum": ["café", "park"]},
        "hours": {"type": "array", "items": {"type": "integer", "minimum": 6, "maximum": 22}},
        "why": {"type": "string"},
        "sure": {"type": "boolean"},
        "weight": {"type": "number"},
    },
}


@given(text=st.text(), count=st.integers(0, 20))
def test_tokens_are_cut_as_they_are_counted(text: str, count: int) -> None:
    cut, tokens = truncated(text, count)
    assert text.startswith(cut)
    assert tokens == approximate_tokens(cut) == min(count, approximate_tokens(text))
    assert (cut == text) == (approximate_tokens(text) <= count)


@given(text=st.text(st.sampled_from("ab \n\x1c\u3000é")) | st.text())
def test_a_token_is_up_to_four_characters_of_a_word(text: str) -> None:
    assert approximate_tokens(text) == len(re.findall(r"\s*\S{1,4}|\s+", text))


@given(text=st.text())
def test_the_bound_is_above_the_estimate(text: str) -> None:
    assert prompt_tokens_max(request(prompt=text)) > approximate_tokens(text)


@given(seed=st.integers(0, 2**31 - 1), limit=st.integers(1, 40))
def test_the_author_is_a_function_of_the_seed(seed: int, limit: int) -> None:
    sent = request(seed=seed, max_tokens=limit)
    answer, again = (run_virtually(Scripted().complete(sent)) for _ in range(2))
    assert answer == again
    assert answer.output_tokens == approximate_tokens(answer.text) <= limit
    whole = run_virtually(Scripted().complete(request(seed=seed, max_tokens=1000))).text
    assert whole.startswith(answer.text)
    assert answer.finish_reason == ("stop" if answer.text == whole else "length")


def test_stop_truncates_at_its_first_occurrence() -> None:
    backend = Scripted(lambda r, draw: "one, two. three")
    assert run_virtually(backend.complete(request(stop=(".", ",")))).text == "one"


def test_a_script_can_be_streamed() -> None:
    backend = Scripted(lambda r, draw: " one two\n three ")

    async def read() -> list[str | Completion]:
        return [item async for item in backend.stream(request())]

    *pieces, completion = run_virtually(read())
    assert isinstance(completion, Completion)
    assert len(pieces) > 3
    assert "".join(str(piece) for piece in pieces) == completion.text == " one two\n three "


def test_a_world_has_its_own_author() -> None:
    def author(call: Request, draw: random.Random) -> str:
        return f"{call.function} {draw.randint(0, 9)}"

    assert run_virtually(Scripted(author).complete(request())).text == (
        f"plan {random.Random(1).randint(0, 9)}"
    )


@given(seed=st.integers(0, 1000))
def test_the_author_follows_a_json_schema(seed: int) -> None:
    sent = request(json_schema=PLAN, max_tokens=1000, seed=seed)
    plan = run_virtually(Scripted().complete(sent)).json()
    assert set(plan) == set(PLAN["properties"])  # type: ignore[call-overload]
    assert plan["where"] in ("café", "park")
    assert all(6 <= hour <= 22 for hour in plan["hours"])


@pytest.mark.parametrize(
    ("schema", "least", "most"),
    [
        ({"type": "integer", "maximum": -3}, -3, -3),
        ({"type": "number", "maximum": 4}, 0, 4),
        ({"type": "integer", "minimum": 20}, 20, 29),
        ({"type": "integer", "minimum": 0.5}, 1, 9),
    ],
)
def test_a_number_has_the_bounds_that_are_given(
    schema: dict[str, object], least: int, most: int
) -> None:
    for seed in range(20):
        answer = run_virtually(Scripted().complete(request(json_schema=schema, seed=seed)))
        assert least <= answer.json() <= most


def test_an_array_may_be_empty() -> None:
    schema = {"type": "array", "maxItems": 0, "items": {"type": "string"}}
    assert run_virtually(Scripted().complete(request(json_schema=schema))).json() == []


@pytest.mark.parametrize(
    "beyond",
    [
        {"regex": "a|b"},
        {"json_schema": {"type": "odd"}},
        {"json_schema": {"type": "array"}},
        {"json_schema": {"type": "integer", "minimum": 2, "maximum": 1}},
        {"json_schema": {"type": "number", "maximum": "9"}},
        {"json_schema": {"type": "object", "properties": ["name"]}},
        {"json_schema": {"enum": []}},
    ],
)
def test_constraints_that_the_author_cannot_follow_are_refused(beyond: dict[str, object]) -> None:
    with pytest.raises(RefusedError, match="which plan of 'agent 3' at step 14 requires"):
        run_virtually(Scripted().complete(request(**beyond)))


def test_an_answer_that_is_not_json_is_reported() -> None:
    with pytest.raises(MalformedError, match=r"not JSON: .*'Sure!'"):
        Completion("Sure!", 1, 1, "stop").json()
    with pytest.raises(MalformedError, match="truncated at max_tokens"):
        Completion('{"a"', 1, 1, "length").json()
    for text in ('{"a": NaN}', r'{"a": "\ud83d"}'):  # neither can be encoded again
        with pytest.raises(MalformedError, match="is not JSON"):
            Completion(text, 1, 1, "stop").json()


def test_an_earlier_run_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    answer = Completion("walk", 3, 1, "stop")
    journal.put(key_of(request()), answer)
    journal.close()
    backend = Replay(path)
    assert run_virtually(backend.complete(request(seed=99))) == answer
    with pytest.raises(RefusedError, match="no answer to converse of 'agent 3' at step 14"):
        run_virtually(backend.complete(request(function="converse")))
    with pytest.raises(MetropolisError, match="nowhere does not exist"):
        Replay(tmp_path / "nowhere")


def test_the_digest_covers_the_model_input() -> None:
    chat = ({"role": "user", "content": "What now?"},)
    same = request(agent=9, step=9, function="x", seed=9, priority=9, occurrence=9, program="x")
    assert same.digest == request().digest
    differing = [
        request(),
        request(prompt="What then?"),
        request(messages=chat),
        request(messages=({"role": "system", "content": "What now?"},)),
        request(max_tokens=21),
        request(temperature=1),
        request(stop=("a", "b")),
        request(stop=("ab",)),
        request(regex="a"),
        request(json_schema={"a": 1, "b": 2}),
        request(json_schema={"b": 2, "a": 1}),
    ]
    assert len({r.digest for r in differing}) == len(differing)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prompt": None}, "give either messages or a prompt"),
        ({"regex": "a", "json_schema": {}}, "not both"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"stop": ("",)}, "stop contains an empty string"),
    ],
)
def test_an_invalid_request_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(MetropolisError, match=f"plan of 'agent 3' at step 14: .*{sentence}"):
        request(**changes)
