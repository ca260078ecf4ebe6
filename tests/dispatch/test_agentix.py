"""Algorithm 2: where programs are at home."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metropolis.dispatch.agentix import THRESHOLD_TOKENS, ProgramAffinity
from metropolis.dispatch.base import Fleet
from metropolis.policy.base import QueuedRequest, ServedRequest

FLEET = Fleet.uniform(count=3, capacity_tokens=1 << 20, tokens_per_s=20.0)


def request(number: int, program: str, prompt_tokens: int) -> QueuedRequest:
    return QueuedRequest(number, program, "f", prompt_tokens, 0.0, 0.0)


@given(st.data())
def test_long_prompts_go_home_and_short_ones_where_least_is(data: st.DataObject) -> None:
    dispatcher, home = ProgramAffinity(FLEET), dict[str, int]()
    at_work: list[list[QueuedRequest]] = [[] for _ in range(len(FLEET))]
    for number in range(data.draw(st.integers(1, 40))):
        tokens = data.draw(st.sampled_from([1, THRESHOLD_TOKENS, THRESHOLD_TOKENS + 1, 9000]))
        asked = request(number, data.draw(st.sampled_from("pqr")), tokens)
        least = min(range(len(FLEET)), key=lambda each: len(at_work[each]))
        placed = dispatcher.place(asked, 0.0)
        if tokens <= THRESHOLD_TOKENS:
            assert placed == least
        else:
            assert placed == home.setdefault(asked.program, least)
        assert placed is not None
        at_work[placed].append(asked)
        if at_work[placed] and data.draw(st.booleans()):
            dispatcher.completed(ServedRequest(at_work[placed].pop(), placed, 0.0, 1.0, 1))
        if data.draw(st.integers(0, 9)) == 0:
            home.pop(asked.program, None)
            dispatcher.program_ended(asked.program)


def test_a_program_moves_when_its_instance_is_closed() -> None:
    dispatcher = ProgramAffinity(FLEET, threshold_tokens=10)
    assert dispatcher.place(request(0, "p", 11), 0.0) == 0
    dispatcher.closed = {0}
    assert dispatcher.place(request(1, "p", 11), 0.0) == 1
    dispatcher.closed = set()
    assert dispatcher.place(request(2, "p", 11), 0.0) == 1
    dispatcher.closed = {0, 1, 2}
    assert dispatcher.place(request(3, "p", 11), 0.0) is None


def test_a_program_has_a_home_for_each_of_its_models() -> None:
    """An instance that does not serve a request's model is closed to it."""
    dispatcher = ProgramAffinity(FLEET, threshold_tokens=10)  # two serve a, the third b
    asked_a = QueuedRequest(0, "p", "f", 11, 0.0, 0.0, model="a")
    asked_b = QueuedRequest(1, "p", "f", 11, 0.0, 0.0, model="b")
    placed = []
    for asked in (asked_a, asked_b, asked_a, asked_b, asked_a):
        dispatcher.closed = {2} if asked.model == "a" else {0, 1}
        placed.append(dispatcher.place(asked, 0.0))
    assert placed == [0, 2, 0, 2, 0]


def test_a_program_has_no_home_when_its_instance_is_lost() -> None:
    dispatcher = ProgramAffinity(FLEET, threshold_tokens=10)
    assert dispatcher.place(request(0, "p", 11), 0.0) == 0
    assert dispatcher.place(request(1, "q", 11), 0.0) == 1
    dispatcher.lost(0)
    assert dispatcher.place(request(2, "q", 11), 0.0) == 1
    assert dispatcher.place(request(3, "p", 11), 0.0) == 2  # the least used
