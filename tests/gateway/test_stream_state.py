"""Answers in parts, without I/O: the client gets the same as from one engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.gateway.payload import Payload
from metropolis.gateway.resumable import ResumableRequest, resumable_request
from metropolis.gateway.routes import CHATS, COMPLETIONS
from metropolis.gateway.stream_state import EXACT_TOKENS, PartialAnswer
from tests.gateway.models import Model, ids_of

CUTS = st.lists(st.floats(0, 1), max_size=5)


def encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def decoded(body: Payload) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(body) if isinstance(body, bytes) else {**body}
    return fields


def resumable(path: str, body: bytes, **known: bool) -> ResumableRequest | None:
    return resumable_request(path, body, json.loads(body), **known)


def bodies(*, chats: bool, stream: bool) -> st.SearchStrategy[dict[str, Any]]:
    fields: dict[str, Any] = {"model": st.just("tiny"), "stream": st.just(stream)}
    limit = st.integers(1, 45)
    options: dict[str, Any] = {"stop": st.sampled_from(["END", "a b", "\n  "])}
    if chats:
        question = st.integers(0, 99).map(lambda n: [{"role": "user", "content": f"q{n}"}])
        fields["messages"] = question
        options |= {"max_tokens": limit, "max_completion_tokens": st.none()}
    else:
        fields |= {"prompt": st.integers(0, 99).map(lambda n: f"q{n}:"), "max_tokens": limit}
    if stream:
        options["stream_options"] = st.just({"include_usage": True})
    elif not chats:
        options["logprobs"] = st.just(0)
    return st.fixed_dictionaries(fields, optional=options)


def in_parts(model: Model, body: dict[str, Any], cuts: list[float], **known: bool) -> bytes:
    """Return what the client gets when the answer leaves its engine at the points `cuts`."""
    path = CHATS if "messages" in body else COMPLETIONS
    request = resumable(path, encoded(body), **known)
    assert request is not None
    partial = PartialAnswer(request)
    asked, got = request.first(), b""
    for cut in (*cuts, None):
        stream = b"".join(model.events(decoded(asked)))
        end = len(stream) if cut is None else int(cut * len(stream))
        got += partial.take(stream[: end // 2]) + partial.take(stream[end // 2 : end])
        if partial.is_at_its_end:
            got += partial.ending()
            break
        asked = partial.rest()
    if not partial.is_joined:
        return got
    status, whole = partial.whole()
    assert status == 200
    return whole


def read(stream: bytes) -> dict[str, Any]:
    """Return a stream as a client parses it."""
    *events, end = stream.removesuffix(b"\n\n").split(b"\n\n")
    assert end == b"data: [DONE]"
    chunks = [json.loads(event.removeprefix(b"data:")) for event in events]
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    said = [choice.get("delta") or choice for choice in choices]
    return {
        "text": "".join(one.get("content") or one.get("text") or "" for one in said),
        "roles": [one["role"] for one in said if one.get("role")],
        "finish": [one["finish_reason"] for one in choices if one["finish_reason"]],
        "usage": [chunk["usage"] for chunk in chunks if chunk.get("usage")],
    }


def bare(whole: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in whole.items() if name not in ("id", "created")}


@given(st.data(), st.booleans(), CUTS)
def test_a_whole_answer_is_that_of_one_engine(
    data: st.DataObject, chats: bool, cuts: list[float]
) -> None:
    body, model = data.draw(bodies(chats=chats, stream=False)), Model()
    whole = json.loads(in_parts(model, body, cuts, preempts=True, is_known=True))
    assert bare(whole) == bare(model.whole(body))


@given(st.data(), st.booleans(), CUTS)
def test_a_stream_is_that_of_one_engine(
    data: st.DataObject, chats: bool, cuts: list[float]
) -> None:
    body, model = data.draw(bodies(chats=chats, stream=True)), Model()
    stream = in_parts(model, body, cuts, preempts=True, is_known=True)
    assert read(stream) == read(b"".join(model.events(body)))


@given(st.data(), CUTS, st.booleans(), st.booleans())
def test_before_unknown_engines_every_event_is_a_token(
    data: st.DataObject, cuts: list[float], stream: bool, preempts: bool
) -> None:
    body, model = data.draw(bodies(chats=False, stream=stream)), Model(groups=False)
    body.pop("stop", None)  # a possible stop string is held back, then sent as one event
    parts = in_parts(model, body, cuts, preempts=preempts or not stream, is_known=False)
    if stream:
        got, one = read(parts), read(b"".join(model.events(body)))
    else:
        got, one = bare(json.loads(parts)), bare(model.whole(body))
    if not got["usage"]:  # the engine was left before it sent usage
        got["usage"] = one["usage"]
    assert got == one


@given(st.data(), st.booleans(), st.booleans())
def test_what_is_not_left_passes_as_it_is(data: st.DataObject, chats: bool, crlf: bool) -> None:
    body = data.draw(bodies(chats=chats, stream=True))
    request = resumable(
        CHATS if chats else COMPLETIONS, encoded(body), preempts=False, is_known=True
    )
    assert request is not None
    assert request.first() == encoded(body)
    stream = b": hello\n\n" + b"".join(Model().events(body))
    if crlf:
        stream = stream.replace(b"\n", b"\r\n")
    partial = PartialAnswer(request)
    assert b"".join(partial.take(bytes([byte])) for byte in stream) == stream
    assert partial.is_understood
    assert partial.is_at_its_end


def test_where_engines_tell_tokens_these_are_the_next_prompt() -> None:
    """Text might be tokenized differently from the generated tokens."""
    body, model = {"model": "tiny", "prompt": "q1:", "max_tokens": 9}, Model(groups=False)
    for stop, is_told in ((None, True), ("END", False)):
        request = resumable(
            COMPLETIONS, encoded(body | {"stop": stop}), preempts=True, is_known=True
        )
        assert request is not None
        partial = PartialAnswer(request)
        first, second, *_ = model.events(decoded(request.first()) | {"stop": ""})
        partial.take(first + second)
        prompt = decoded(partial.rest())["prompt"]
        assert (prompt == ids_of("q1", 2)) == is_told
        assert isinstance(prompt, str) != is_told


def event(text: str, *ids: int, prompt: list[int] | None = None, tokens: int = 0) -> bytes:
    """An event of a stream that returns token ids; `tokens`: the engine's count in this part."""
    choice = {"text": text, "token_ids": ids, "prompt_token_ids": prompt}
    usage = {"prompt_tokens": 1, "completion_tokens": tokens or len(ids), "total_tokens": 9}
    return b"data: %b\n\n" % encoded({"choices": [choice], "usage": usage})


def begun_with_ids(*events: bytes) -> PartialAnswer:
    partial = begun(COMPLETIONS, stream=True, max_tokens=999)
    partial.take(b"".join(events))
    return partial


def test_a_part_is_not_preempted_before_a_piece_of_a_single_token() -> None:
    """A last piece of several tokens would be resumed from its text. The wait is limited."""
    partial = begun_with_ids(event("ab", 1, 2, prompt=[0]))
    assert not partial.is_preemptible
    partial.take(event("c", 3, tokens=3))
    assert partial.is_preemptible
    assert decoded(partial.rest())["prompt"] == [0, 1, 2, 3]
    partial.take(event("de", 4, 5))
    assert not partial.is_preemptible
    partial.take(event("f" * EXACT_TOKENS, *range(EXACT_TOKENS), tokens=2 + EXACT_TOKENS))
    assert partial.is_preemptible
    assert decoded(partial.rest())["prompt"] == "pabcde" + "f" * EXACT_TOKENS


@pytest.mark.parametrize("ids", [{}, {"token_ids": None}, {"token_ids": [1, 2]}])
def test_without_the_ids_of_the_prompt_there_is_no_wait(ids: dict[str, Any]) -> None:
    one = encoded({"choices": [{"text": "a"} | ids]})
    assert begun(COMPLETIONS, one, stream=True).is_preemptible


def test_ids_are_those_of_the_prompt_that_the_part_had() -> None:
    """After a part that was resumed from text, the ids of earlier parts do not fit any more."""
    partial = begun_with_ids(event("ab", 1, 2, 200, prompt=[0]))
    assert decoded(partial.rest())["prompt"] == "pab"
    partial.take(event("", 200, prompt=[0, 7]) + event("é", 201, tokens=2))
    assert decoded(partial.rest())["prompt"] == [0, 7, 200, 201]


def test_an_engine_that_was_lost_before_its_answer_costs_no_ids() -> None:
    partial = begun_with_ids()
    partial.rest()
    partial.take(event("a", 1, prompt=[0]))
    assert decoded(partial.rest())["prompt"] == [0, 1]


def test_a_token_of_a_space_and_half_a_character_is_not_the_end_of_a_prompt() -> None:
    partial = begun_with_ids(event("a", 1, prompt=[0]), event(" ", 2, tokens=2))
    assert decoded(partial.rest())["prompt"] == [0, 1]


def test_few_tokens_are_generated_again_for_the_sake_of_ids() -> None:
    many = range(2, 2 + EXACT_TOKENS + 1)
    partial = begun_with_ids(
        event("a", 1, prompt=[0]), event("b" * len(many), *many, tokens=1 + len(many))
    )
    assert decoded(partial.rest())["prompt"] == "pa" + "b" * len(many)


PLAIN: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "p", "max_tokens": 3},
    CHATS: {"messages": [{"role": "user", "content": "p"}]},
}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        *[
            (path, fields)
            for path in PLAIN
            for fields in (
                {"n": 2}, {"response_format": {"type": "json_object"}}, {"regex": "a*"},
                {"presence_penalty": 1}, {"frequency_penalty": 0.1}, {"repetition_penalty": 1.1},
                {"stream": True, "logprobs": 2}, {"unheard_of": 1},
            )
        ],
        *[
            (COMPLETIONS, fields)
            for fields in (
                {"prompt": ["a"]}, {"prompt": [1, 2]}, {"max_tokens": None}, {"echo": True},
                {"suffix": "."}, {"best_of": 3}, {"stream": True, "logprobs": 0},
            )
        ],
        *[
            (CHATS, fields)
            for fields in (
                {"messages": []}, {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
                {"messages": [*PLAIN[CHATS]["messages"], {"role": "assistant", "content": "a"}]},
                {"tools": [{"type": "function"}]}, {"logprobs": True},
                {"continue_final_message": True},
            )
        ],
    ],
)  # fmt: skip
def test_what_cannot_be_continued_is_let_alone(path: str, fields: dict[str, Any]) -> None:
    known = {"preempts": True, "is_known": True}
    assert resumable(path, encoded(PLAIN[path]), **known) is not None
    assert resumable(path, encoded(PLAIN[path] | fields), **known) is None


def test_only_known_engines_continue_chats_and_only_for_policies_are_answers_joined() -> None:
    stream = {"stream": True}
    for path, fields, preempts, is_known, expected in (
        (CHATS, stream, True, False, False),
        (CHATS, stream, False, True, True),
        (COMPLETIONS, stream, False, False, True),
        (COMPLETIONS, {}, True, False, True),
        (COMPLETIONS, {}, False, True, False),
        (COMPLETIONS, {"stream": False}, False, True, False),
        ("/v1/embeddings", stream, True, True, False),
    ):
        body = encoded(PLAIN[path if path in PLAIN else CHATS] | fields)
        request = resumable(f"{path}?a=1", body, preempts=preempts, is_known=is_known)
        assert (request is not None) == expected


def begun(path: str, *events: bytes, **fields: Any) -> PartialAnswer:
    request = resumable(path, encoded(PLAIN[path] | fields), preempts=True, is_known=True)
    assert request is not None
    partial = PartialAnswer(request)
    partial.take(b"".join(b"data: %b\n\n" % event for event in events))
    return partial


@pytest.mark.parametrize(
    "event",
    [
        b'{"choices": [{"delta": {"reasoning_content": "hm"}}]}',
        b'{"choices": [{"delta": {"content": "<think>"}}]}',
        b'{"choices": [{"delta": {"tool_calls": [{}]}}]}',
        b'{"error": {"message": "no", "code": 400}}',
        b"{",
    ],
)
def test_what_is_more_than_text_is_not_left(event: bytes) -> None:
    text = b'{"choices": [{"delta": {"content": "a"}}]}'
    assert begun(CHATS, text, stream=True).is_preemptible
    for partial in (begun(CHATS, text, event, stream=True), begun(CHATS, text, event)):
        assert not partial.is_preemptible
        assert partial.can_resume == partial.is_joined


def test_a_whole_answer_may_have_thoughts_and_begins_anew_when_it_is_lost() -> None:
    thought = b'{"id": 1, "choices": [{"delta": {"reasoning_content": "h"}}]}'
    partial = begun(CHATS, thought, thought, b'{"choices": [{"delta": {"content": "a"}}]}')
    assert decoded(partial.rest()).get("messages") == PLAIN[CHATS]["messages"]
    finish = b'{"choices": [{"delta": {}, "finish_reason": "stop"}]}'
    for event in (thought, thought, b'{"choices": [{"delta": {"content": "b"}}]}', finish):
        partial.take(b"data: %b\n\n" % event)
    (choice,) = json.loads(partial.whole()[1])["choices"]
    assert choice["message"] == {"role": "assistant", "content": "b", "reasoning_content": "hh"}


@pytest.mark.parametrize(("code", "status"), [(400, 400), (None, 500), (7, 500)])
def test_an_engines_error_is_the_answer(code: int | None, status: int) -> None:
    error = encoded({"error": {"message": "no", "code": code}})
    assert begun(COMPLETIONS, error).whole() == (status, error)
    text = b'{"choices": [{"text": "a", "finish_reason": "stop"}], "error": {"code": 503}}'
    assert begun(COMPLETIONS, text, error).whole() == (status, error)
    assert begun(COMPLETIONS, text, b"[DONE]").whole() == (503, text)
    named = begun(COMPLETIONS)
    named.take(b"event: error\nid: 1\ndata: %b\n\ndata: [DONE]\n\n" % error)
    assert named.whole() == (status, error)


TEXT = b'data: {"choices": [{"text": "a", "finish_reason": %b}]}\n\n'


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"data: [DONE]\n\n",
        b'data: {"choices": []}\n\ndata: [DONE]\n\n',
        b'{"error": {"message": "no"}}',
        b'event: error\ndata: {"detail": "no"}\n\n',
        TEXT % b"null",
        TEXT % b"null" + b"data: [DONE]\n\n",
        TEXT % b"null" + b'data: {"choices": null}\n\n' + TEXT % b'"stop"',
        b"data: {" + b"x" * 9999 + b"\n\n",
    ],
)
def test_an_answer_without_its_end_is_an_error(stream: bytes) -> None:
    partial = begun(COMPLETIONS)
    partial.take(stream)
    status, body = partial.whole()
    assert status == 502
    sentence = json.loads(body)["error"]["message"]
    tail = stream.decode()[-1000:]
    assert sentence == f"the engine's answer is incomplete; it ends with {tail!r}"


def test_what_is_said_beside_events_does_no_harm() -> None:
    partial = begun(COMPLETIONS)
    partial.take(b"retry: 9\n\nevent: token\n" + TEXT.replace(b", ", b",\ndata:") % b'"stop"')
    status, body = partial.whole()
    assert (status, json.loads(body)["choices"][0]["text"]) == (200, "a")


def test_as_many_tokens_as_may_come_are_an_end() -> None:
    partial = begun(COMPLETIONS)
    partial.take(TEXT % b"null" * 3)
    assert partial.is_at_its_end
    status, body = partial.whole()
    assert (status, json.loads(body)["choices"][0]["finish_reason"]) == (200, "length")


@pytest.mark.parametrize("offsets", [[None, 0, "a", -1], {"a": 1}, "abc", 3])
def test_invalid_offsets_of_an_engine_remain(offsets: Any) -> None:
    body = encoded({"prompt": "p", "max_tokens": 9, "logprobs": 1})
    request = resumable(COMPLETIONS, body, preempts=True, is_known=False)
    assert request is not None
    answer = PartialAnswer(request)
    choice = {"text": " a", "logprobs": {"text_offset": offsets}, "finish_reason": "stop"}
    answer.take(b"data: " + encoded({"choices": [choice]}) + b"\n\n")
    _, whole = answer.whole()
    assert json.loads(whole)["choices"][0]["logprobs"]["text_offset"] == offsets


def test_fields_of_a_message_whose_types_change_do_no_harm() -> None:
    body = encoded({"messages": [{"role": "user", "content": "q"}]})
    request = resumable(CHATS, body, preempts=True, is_known=True)
    assert request is not None
    answer = PartialAnswer(request)
    for value in ({"a": 1}, "b", "c", 3, "d", None, "e"):
        delta = {"content": "x", "own": value}
        answer.take(b"data: " + encoded({"choices": [{"index": 0, "delta": delta}]}) + b"\n\n")
    answer.take(b'data: {"choices": [{"index": 0, "finish_reason": "stop"}]}\n\n')
    status, whole = answer.whole()
    assert status == 200
    message = json.loads(whole)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "x" * 7, "own": "de"}
