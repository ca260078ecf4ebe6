"""Assignment of requests to programs by headers or body, and the end of programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.gateway.passthrough import output_tokens_in
from metropolis.gateway.payload import with_fields
from metropolis.gateway.programs import FUNCTION_IDLE_S, FUNCTIONS_MAX, OTHER, ProgramTracker
from metropolis.policy.base import QueuedRequest
from metropolis.types import MetropolisError
from tests.gateway.parsing import read

SYSTEM = {"role": "system", "content": "You are a planner."}


def said(*turns: str) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": turn} for n, turn in enumerate(turns)]


class Front:
    """A ProgramTracker with the inputs of HTTP requests; records the programs that have ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.programs = ProgramTracker(60.0, self.ended.append)

    def enter(
        self, now_s: float = 0.0, headers: Mapping[str, str] | None = None, **body: Any
    ) -> QueuedRequest:
        return self.programs.enter(read(headers or {}, json.dumps(body).encode()), now_s)

    def ask(
        self, now_s: float = 0.0, headers: Mapping[str, str] | None = None, **body: Any
    ) -> QueuedRequest:
        request = self.enter(now_s, headers, **body)
        self.programs.leave(request, now_s, is_answered=True)
        return request


def test_headers_say_it_all() -> None:
    headers = {
        "X-Metropolis-Program": "p", "X-Metropolis-Function": "plan", "X-Metropolis-Step": "7",
        "X-Metropolis-Upstream": "look", "X-Metropolis-Stages-Left": "2",
    }  # fmt: skip
    request = Front().ask(3.0, headers, prompt="x" * 400)
    assert (request.program, request.function, request.upstream) == ("p", "plan", "look")
    assert (request.step, request.stages_left) == (7, 2)
    assert (request.arrived_s, request.program_arrived_s, request.prompt_tokens) == (3.0, 3.0, 101)


def test_a_program_remembers_when_it_began_and_what_was_answered_last() -> None:
    front = Front()
    named = {"X-Metropolis-Program": "p"}
    front.ask(1.0, named | {"X-Metropolis-Function": "plan"}, prompt="")
    request = front.ask(5.0, named | {"X-Metropolis-Function": "act"}, prompt="")
    assert (request.program_arrived_s, request.upstream) == (1.0, "plan")


def test_the_field_user_names_a_program() -> None:
    assert Front().ask(prompt="x", user="ada").program == "ada"


@pytest.mark.parametrize("user", ["u" * 201, "a\nb", " request 9", 5, ["ada"]])
def test_a_user_that_is_no_name_names_no_program(user: Any) -> None:
    front = Front()
    first, second = front.ask(prompt="x", user=user), front.ask(prompt="x", user=user)
    assert first.program != second.program
    assert user not in (first.program, second.program)


def test_programs_of_their_own_are_nobody_elses() -> None:
    front = Front()
    own = [front.enter(prompt="x").program, front.enter(messages=said("hello")).program]
    for name in own:
        with pytest.raises(MetropolisError, match="header X-Metropolis-Program"):
            front.ask(0.0, {"X-Metropolis-Program": name}, prompt="x")
        assert front.ask(0.0, {"X-Metropolis-Program": name.strip()}, prompt="x").program not in own


@pytest.mark.parametrize("name", ["Program", "Function", "Upstream"])
@pytest.mark.parametrize("value", ["a\udcff", "a\x7f", "a\tb", "n" * 201])
def test_names_can_be_shown(name: str, value: str) -> None:
    front = Front()
    with pytest.raises(MetropolisError, match=f"{name} begins with .* at most 200"):
        front.ask(0.0, {f"X-Metropolis-{name}": value}, prompt="x")
    front.ask(0.0, {f"X-Metropolis-{name}": "n" * 200}, prompt="x")
    front.ask(0.0, {f"X-Metropolis-{name}": "größer 大"}, prompt="x")


def test_a_conversation_is_a_program() -> None:
    front = Front()
    first = front.ask(messages=[SYSTEM, *said("hello")])
    second = front.ask(messages=[SYSTEM, *said("hello", "hi", "how")])
    other = front.ask(messages=[SYSTEM, *said("good day", "hi", "how")])
    again = front.ask(messages=[SYSTEM, *said("hello")])
    assert first.program == second.program
    assert len({first.program, other.program, again.program}) == 3
    assert front.ask(messages=[SYSTEM, *said("hello", "ho")]).program == again.program


def test_other_requests_are_programs_of_their_own_and_end_with_their_answer() -> None:
    front = Front()
    first, second = front.ask(prompt="x"), front.ask(prompt="x")
    assert front.ended == [first.program, second.program]
    assert first.program != second.program


def test_agents_of_a_framework_are_told_apart_by_their_system_prompts() -> None:
    front = Front()
    planner = front.ask(messages=[SYSTEM, *said("a")])
    again = front.ask(messages=[SYSTEM, *said("b")])
    critic = front.ask(messages=[SYSTEM | {"content": "You are a critic."}, *said("a")])
    assert planner.function == again.function != critic.function
    assert front.ask(messages=said("a")).function == "chat"
    assert front.ask(prompt="a").function == "completion"


def test_programs_end_by_a_word_or_by_being_idle() -> None:
    front = Front()
    waiting = front.enter(0.0, {"X-Metropolis-Program": "busy"}, prompt="")
    front.ask(0.0, {"X-Metropolis-Program": "idle"}, prompt="")
    front.ask(30.0, {"X-Metropolis-Program": "later"}, prompt="")
    front.ask(40.0, {"X-Metropolis-Program": "told", "X-Metropolis-End": "true"}, prompt="")
    assert front.ended == ["told"]
    front.programs.sweep(60.0)
    assert front.ended == ["told", "idle"]
    front.programs.sweep(1000.0)
    assert front.ended == ["told", "idle", "later"]
    front.programs.leave(waiting, 1000.0, is_answered=True)
    front.programs.sweep(1060.0)
    assert front.ended[-1] == "busy"
    assert len(front.programs) == 0


def test_functions_beyond_a_bound_are_one() -> None:
    front = Front()
    names = {
        front.ask(0.0, {"X-Metropolis-Function": f"f{n}"}, prompt="").function
        for n in range(FUNCTIONS_MAX + 50)
    }
    assert len(names) == FUNCTIONS_MAX + 1
    assert OTHER in names


def test_functions_that_come_no_more_make_room() -> None:
    front, forgotten = Front(), []
    front.programs = ProgramTracker(60.0, front.ended.append, forgotten.append)

    def function(now_s: float, name: str) -> str:
        return front.ask(now_s, {"X-Metropolis-Function": name}, prompt="").function

    for n in range(FUNCTIONS_MAX):
        assert function(0.0, f"f{n}") == f"f{n}"
    assert function(1.0, "f0") == "f0"
    assert function(FUNCTION_IDLE_S - 1.0, "late") == OTHER
    assert not forgotten
    assert function(FUNCTION_IDLE_S, "late") == "late"
    assert forgotten == ["f1"]  # f0 was used later
    assert [front.programs.metric_label(name) for name in ("f0", "f1", "late")] == [
        "f0",
        OTHER,
        "late",
    ]
    assert function(FUNCTION_IDLE_S, OTHER) == OTHER


def test_guessed_functions_crowd_out_none_that_are_named() -> None:
    front = Front()
    prompts = [[SYSTEM | {"content": f"It is day {n}."}] for n in range(FUNCTIONS_MAX + 1)]
    assert [front.ask(messages=prompt).function for prompt in prompts][-1] == OTHER
    assert front.ask(0.0, {"X-Metropolis-Function": "plan"}, prompt="").function == "plan"


NAMES = st.sampled_from(["", "a", "b"])
OPENINGS = st.sampled_from(["hello", "hi"])


@given(
    st.lists(
        st.tuples(NAMES, OPENINGS, st.booleans(), st.booleans(), st.integers(0, 80)), max_size=40
    ),
    st.randoms(),
)
def test_every_program_ends_once_and_only_when_nothing_of_it_is_open(
    requests: list[tuple[str, str, bool, bool, int]], draw: Any
) -> None:
    front, now_s = Front(), 0.0
    open_: list[QueuedRequest] = []
    began: list[str] = []
    for name, opening, is_continued, is_last, later_s in requests:
        now_s += later_s
        headers = {"X-Metropolis-Program": name} if name else {}
        headers |= {"X-Metropolis-End": "1"} if is_last else {}
        turns = said(opening, "yes", "so") if is_continued else said(opening)
        running = set(began) - set(front.ended)
        request = front.enter(now_s, headers, messages=turns)
        open_.append(request)
        if request.program not in running:
            began.append(request.program)
            if request.program in front.ended:
                front.ended.remove(request.program)
        while open_ and draw.random() < 0.5:
            one = open_.pop(draw.randrange(len(open_)))
            front.programs.leave(one, now_s, is_answered=draw.random() < 0.5)
        front.programs.sweep(now_s)
        assert not {one.program for one in open_} & set(front.ended)
        assert len(front.ended) == len(set(front.ended))
    for one in open_:
        front.programs.leave(one, now_s, is_answered=True)
    front.programs.sweep(now_s + 60)
    assert set(front.ended) == set(began)
    assert (len(front.programs), front.programs._idle, front.programs._conversations) == (0, {}, {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner),
    max_leaves=5,
)


@given(st.dictionaries(st.text(max_size=5), JSON), st.sampled_from(["", " ", "\n  "]))
def test_fields_added_win_and_the_rest_stays(body: dict[str, Any], space: str) -> None:
    written = (space + json.dumps(body, indent=len(space)) + space).encode()
    fields = {"priority": 3, "rid": "r"}
    assert with_fields(body, fields) == body | fields
    changed = with_fields(written, fields)
    assert isinstance(changed, bytes)
    assert json.loads(changed) == body | fields
    assert changed.startswith(written.rstrip()[:-1])
    assert with_fields(written, {}) is written


@pytest.mark.parametrize(
    ("end", "tokens"),
    [
        (b'{"usage": {"prompt_tokens": 4, "completion_tokens": 17}}', 17),
        (b'data: {"usage":{"completion_tokens" : 5}}\n\ndata: [DONE]\n\n', 5),
        (b'{"text": "\\"completion_tokens\\": 9"}', None),
        (b"", None),
    ],
)
def test_usage_is_read_from_the_end(end: bytes, tokens: int | None) -> None:
    assert output_tokens_in(end) == tokens
