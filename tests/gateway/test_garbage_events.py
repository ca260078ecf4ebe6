"""Whatever JSON an engine puts into its events, an answer continues or ends with an error."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from metropolis.gateway.routes import CHATS, COMPLETIONS
from metropolis.gateway.stream_state import PartialAnswer
from tests.gateway.test_stream_state import encoded, resumable

ATOMS = st.sampled_from([None, True, 0, -1, 1.5, 10**30, "", " a", "<think", "é"])
VALUES: st.SearchStrategy[Any] = (
    ATOMS
    | st.lists(ATOMS, max_size=2)
    | st.dictionaries(st.sampled_from(["text_offset", "completion_tokens"]), ATOMS, max_size=2)
)


def odd(usual: dict[str, Any], *names: str) -> st.SearchStrategy[dict[str, Any]]:
    """Objects like `usual`; at most one of its fields, and any of `names`, have any value."""
    others = st.fixed_dictionaries({}, optional=dict.fromkeys(names, VALUES))
    one = st.dictionaries(st.sampled_from([*usual]), VALUES, max_size=1)
    return st.tuples(others, one).map(lambda pair: usual | pair[0] | pair[1])


DELTA = odd({"content": "a", "tool_calls": None, "own": "b"})
CHOICE = odd({"text": "a", "token_ids": [1], "finish_reason": None}, "logprobs", "own")
CHOICES = st.tuples(CHOICE, DELTA).map(lambda pair: [{"index": 0, "delta": pair[1]} | pair[0]])
EVENT = st.tuples(odd({"id": "x"}, "usage"), CHOICES).map(lambda p: {"choices": p[1]} | p[0])


@given(st.lists(EVENT, max_size=4), st.booleans(), st.booleans(), st.booleans())
def test_no_event_ends_an_answer_with_an_exception(
    events: list[dict[str, Any]], chats: bool, stream: bool, resumes: bool
) -> None:
    asked: dict[str, Any] = {"prompt": "p", "max_tokens": 9}
    if chats:
        asked = {"messages": [{"role": "user", "content": "q"}]}
    path, body = CHATS if chats else COMPLETIONS, encoded({**asked, "stream": stream})
    request = resumable(path, body, preempts=True, is_known=True)
    assert request is not None
    answer = PartialAnswer(request)
    for event in events:
        answer.take(b"data: " + encoded(event) + b"\n\n")
        if resumes and answer.is_preemptible:
            answer.rest()
    answer.ending()
    status, whole = answer.whole()
    assert 200 <= status < 600
    json.loads(whole)
