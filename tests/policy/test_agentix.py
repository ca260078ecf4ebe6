"""Attained service: figure 2 of the paper, the levels, quanta, starvation and the process table."""

from __future__ import annotations

from math import inf
from random import Random
from weakref import WeakSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.policy.agentix.policy import Atlas, Plas
from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.policy.fixed import Fcfs
from metropolis.policy.mlfq import Mlfq
from metropolis.policy.multilevel_queue import Multilevel
from metropolis.types import MetropolisError
from tests.policy.steps import waits
from tests.policy.test_queue import Watched

QUANTA_S = (2.0, 1.0)
FIGURE_2 = {
    "A": [[4], [3], [1], [1]],
    "B": [[3], [3], [4]],
    "C": [[1], [2]],
    "D": [[4]],
}


def test_figure_2() -> None:
    """MLFQ is said to wait 18 units as well; docs/log.md."""
    assert waits(FIGURE_2, Fcfs(), slots=2) == {"A": 3, "B": 4, "C": 7, "D": 4}  # 18
    assert waits(FIGURE_2, Mlfq(QUANTA_S), slots=2) == {"A": 3, "B": 3, "C": 2, "D": 9}  # 17
    assert waits(FIGURE_2, Plas(QUANTA_S), slots=2) == {"A": 3, "B": 4, "C": 2, "D": 3}  # 12
    late = waits(FIGURE_2, Plas(QUANTA_S), slots=2, arrivals_first=True)
    assert sum(late.values()) == 13
    assert waits(FIGURE_2, Atlas(QUANTA_S), slots=2) == waits(FIGURE_2, Plas(QUANTA_S), slots=2)


def request(number: int, program: str = "p", arrived_s: float = 0.0) -> QueuedRequest:
    return QueuedRequest(number, program, "call", 1, arrived_s, 0.0)


def run(policy: Policy, asked: QueuedRequest, started_s: float, completed_s: float) -> None:
    policy.arrived(asked)
    policy.started(asked, started_s)
    policy.completed(ServedRequest(asked, 0, started_s, completed_s, 1))


@pytest.mark.parametrize("policy", [Mlfq((1.0, 1.0), promote_s=1e6), Plas((1.0, 1.0), beta=1e6)])
def test_what_has_been_answered_is_soon_forgotten(policy: Multilevel) -> None:
    for number in range(5000):  # each would starve in a million seconds
        asked = request(number, f"p{number}", float(number))
        policy.arrived(asked)
        policy.started(asked, number)
        policy.passed(number + 1.5)
        policy.preempted(asked, number + 1.5)
        policy.completed(ServedRequest(asked, 0, number, number + 2.0, 1))
    assert len(policy._due) <= 1001


def test_answered_calls_are_freed() -> None:
    policy, alive = Mlfq((100.0,)), WeakSet[QueuedRequest]()
    for number in range(10):
        asked = Watched(number, "p", "call", 1, 0.0, 0.0)
        alive.add(asked)
        run(policy, asked, 0.0, 1.0)
    del asked
    assert not alive


def level(policy: Policy, asked: QueuedRequest) -> int:
    return policy.rank(asked) >> 40


def test_a_spent_quantum_leads_one_level_down_and_behind_who_is_there() -> None:
    policy, first, second = Plas((2.0, 3.0), beta=1e9), request(0), request(1, "q")
    run(policy, request(2, "q"), 0.0, 2.5)  # so that q's next enters the second level
    policy.arrived(first)
    policy.started(first, 10.0)
    policy.arrived(second)
    assert policy.due_s == 12.0
    policy.passed(11.9)
    assert level(policy, first) == 0
    policy.passed(12.0)
    assert level(policy, first) == level(policy, second) == 1
    assert policy.rank(second) < policy.rank(first)
    policy.preempted(first, 13.0)  # one of its three seconds is over
    policy.started(first, 20.0)
    assert policy.due_s == 22.0
    policy.passed(22.0)
    assert level(policy, first) == 2
    policy.passed(1e6)
    assert level(policy, first) == 2  # the last has no end


@pytest.mark.parametrize("policy", [Mlfq((0.3,), promote_s=0.1), Plas((0.3,), beta=0.1)])
def test_a_clock_too_coarse_for_a_quantum_moves_calls_as_well(policy: Multilevel) -> None:
    began_s = float(1 << 51)  # times are multiples of half a second
    asked = request(0, arrived_s=began_s)
    policy.arrived(asked)
    policy.started(asked, began_s)
    policy.passed(began_s + 0.5)
    assert level(policy, asked) == 1
    policy.preempted(asked, began_s + 1)
    policy.passed(began_s + 2)
    assert level(policy, asked) == 0


def test_threads_count_once_in_atlas_and_all_in_plas() -> None:
    for policy, service_s in ((Plas(), 3 + 5 + 2), (Atlas(), 5 + 2)):
        threads = [request(0), request(1)]
        for thread in threads:
            policy.arrived(thread)
            policy.started(thread, 0.0)
        policy.completed(ServedRequest(threads[1], 0, 0.0, 5.0, 1))
        policy.completed(ServedRequest(threads[0], 0, 2.0, 3.0, 1))
        run(policy, request(2, arrived_s=5.0), 6.0, 8.0)
        assert policy.program_times_s("p")[0] == service_s
        policy.program_ended("p")
        assert policy.program_times_s("p") == (0.0, 0.0)


def test_waits_add_up_in_plas_and_along_chains_in_atlas() -> None:
    for policy, waited_s in ((Plas(), 3 + 1 + 2), (Atlas(), 3 + 2)):
        threads = [request(0), request(1)]
        for thread in threads:
            policy.arrived(thread)
        policy.started(threads[1], 1.0)
        policy.completed(ServedRequest(threads[1], 0, 1.0, 2.0, 1))
        policy.started(threads[0], 3.0)
        policy.completed(ServedRequest(threads[0], 0, 3.0, 4.0, 1))
        run(policy, request(2, arrived_s=4.0), 6.0, 7.0)
        assert policy.program_times_s("p")[1] == waited_s


def test_a_promoted_call_begins_anew_behind_those_of_the_first_level() -> None:
    policy, promoted, other = Plas((2.0, 10.0), beta=3.0), request(0), request(1, "q", 15.0)
    policy.arrived(promoted)
    policy.started(promoted, 0.0)
    policy.passed(2.0)
    policy.preempted(promoted, 4.0)
    policy.arrived(other)
    policy.passed(16.0)  # 12 = 3 * 4
    assert level(policy, promoted) == level(policy, other) == 0
    assert policy.rank(other) < policy.rank(promoted)
    policy.started(promoted, 17.0)
    assert policy.due_s == 19.0  # the quantum of the first level
    policy.passed(19.0)
    assert level(policy, promoted) == 1
    policy.completed(ServedRequest(promoted, 0, 13.0, 20.0, 1))
    assert policy.program_times_s("p") == (3.0, 1.0)  # since the promotion


def test_a_program_that_starves_is_promoted_with_all_its_threads() -> None:
    policy = Plas((1.0,), beta=3.0)
    run(policy, request(0), 2.0, 6.0)  # waited 2, served 4
    threads = [request(1, arrived_s=6.0), request(2, arrived_s=7.0)]
    for thread in threads:
        policy.arrived(thread)
    assert [level(policy, thread) for thread in threads] == [1, 1]
    assert policy.due_s == 16.0  # 2 + 10 = 3 * 4
    policy.passed(16.0)
    assert [level(policy, thread) for thread in threads] == [0, 1]
    assert policy.version == 1
    policy.passed(17.0)
    assert [level(policy, thread) for thread in threads] == [0, 0]
    assert policy.due_s == inf  # nobody waits below the first level


def test_what_a_sibling_waited_makes_a_thread_starve_earlier() -> None:
    policy = Plas((1.0,), beta=3.0)
    run(policy, request(0), 0.0, 4.0)
    slow, quick = request(1, arrived_s=4.0), request(2, arrived_s=4.0)
    for thread in (slow, quick):
        policy.arrived(thread)
    assert policy.due_s == 16.0
    policy.started(quick, 12.0)
    policy.completed(ServedRequest(quick, 0, 12.0, 12.5, 1))  # waited 8, served 0.5
    assert policy.due_s == 12.5  # 8 + 5.5 = 3 * 4.5 at 9.5: already over
    policy.passed(12.5)
    assert level(policy, slow) == 0
    policy.started(slow, 13.0)
    policy.completed(ServedRequest(slow, 0, 13.0, 14.0, 1))
    assert policy.program_times_s("p") == (5.5, 8.5)  # it waits again from 12.5 to 13


def test_a_completion_reschedules_only_siblings_that_can_be_promoted() -> None:
    policy, running = Plas((1.0,), beta=3.0), request(0)
    policy.arrived(running)
    policy.arrived(request(1))  # in the first level
    policy.started(running, 0.0)
    expected = dict(policy._expected)
    policy.completed(ServedRequest(running, 0, 0.0, 4.0, 1))
    assert policy._expected == {1: expected[1]}
    second = request(2, arrived_s=4.0)
    policy.arrived(request(3, arrived_s=4.0))
    run(policy, second, 4.0, 5.0)
    assert policy._expected[1] == expected[1]
    assert policy.due_s == 19.0  # 15 = 3 * 5


def test_mlfq_promotes_a_call_that_has_waited_too_long() -> None:
    policy, asked = Mlfq((1.0,), promote_s=5.0), request(0)
    policy.arrived(asked)
    policy.started(asked, 3.0)
    policy.passed(4.0)
    policy.preempted(asked, 4.5)
    assert (level(policy, asked), policy.due_s) == (1, 6.5)
    policy.passed(6.5)
    assert level(policy, asked) == 0


@given(st.integers(0, 1 << 30), st.sampled_from([Mlfq, Plas, Atlas]))
def test_calls_sink_by_service_alone(seed: int, kind: type[Multilevel]) -> None:
    """Against the same kept by hand, when nobody starves: levels, and the table of programs."""
    draw, policy = Random(seed), kind(QUANTA_S)
    policy.promotion_s = lambda call: inf  # type: ignore[method-assign]
    attained: dict[str, float] = {}
    active: dict[int, tuple[QueuedRequest, float, list[float]]] = {}
    running: set[int] = set()
    now_s = 0.0
    for number in range(60):
        now_s += draw.choice([0.0, 0.5, 1.25])
        policy.passed(now_s)
        if len(active) < 2 or draw.random() < 0.4:
            asked = request(number, draw.choice("pqr"), now_s)
            policy.arrived(asked)
            begin_s = 0.0 if kind is Mlfq else attained.get(asked.program, 0.0)
            active[number] = asked, begin_s, []
        chosen = draw.choice(sorted(active))
        asked, begin_s, spans = active[chosen]
        spans.append(now_s)  # by turns the beginning and the end of service
        if chosen not in running:
            policy.started(asked, now_s)
            running.add(chosen)
        else:
            running.discard(chosen)
            if draw.random() < 0.5:
                policy.preempted(asked, now_s)
            else:
                served_s = served(spans, now_s)
                policy.completed(ServedRequest(asked, 0, spans[0], now_s, 1))
                before_s = attained.get(asked.program, 0.0)
                plas_s, atlas_s = before_s + served_s, max(before_s, begin_s + served_s)
                attained[asked.program] = plas_s if kind is Plas else atlas_s
                del active[chosen]
        policy.passed(now_s)
        for asked, begin_s, spans in active.values():
            assert level(policy, asked) == sunk(begin_s, served(spans, now_s)), asked
    for program, service_s in attained.items():
        expected_s = 0.0 if kind is Mlfq else pytest.approx(service_s)
        assert policy.program_times_s(program)[0] == expected_s


def served(spans: list[float], now_s: float) -> float:
    ends = [*spans, now_s] if len(spans) % 2 else spans
    return sum(end_s - begin_s for begin_s, end_s in zip(ends[::2], ends[1::2], strict=True))


def sunk(begin_s: float, served_s: float) -> int:
    """Enters by what the program has attained; then full quanta lead down."""
    at = sum(begin_s >= low_s for low_s in (2.0, 3.0))
    for quantum_s in QUANTA_S[at:]:
        if served_s < quantum_s:
            break
        served_s, at = served_s - quantum_s, at + 1
    return at


@pytest.mark.parametrize("quanta_s", [(), (1.0, 0.0), (inf,)])
def test_quanta_that_are_none_are_refused(quanta_s: tuple[float, ...]) -> None:
    with pytest.raises(MetropolisError, match="should be 1 to 255 numbers of seconds"):
        Mlfq(quanta_s)
    with pytest.raises(MetropolisError, match=r"beta is 0; it should be above 0"):
        Plas(beta=0)


def test_by_program_the_next_call_stands_where_its_program_was() -> None:
    for by_program in (False, True):
        policy, other = Plas((2.0,), by_program=by_program), request(1, "q")
        first, following = request(0), request(2, arrived_s=1.0)
        policy.arrived(first)
        policy.arrived(other)
        policy.started(first, 0.0)
        policy.completed(ServedRequest(first, 0, 0.0, 1.0, 1))
        policy.arrived(following)
        assert level(policy, following) == level(policy, other) == 0
        assert (policy.rank(following) < policy.rank(other)) == by_program
