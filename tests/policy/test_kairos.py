"""Kairos' parts: workflows from names and times, distributions, and the order of functions."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance

from metropolis.policy.base import QueuedRequest, ServedRequest
from metropolis.policy.kairos.latency import FIRST, LEVELS, Latencies, wasserstein
from metropolis.policy.kairos.policy import PROGRAM_MAX, TRIALS, Kairos
from metropolis.policy.kairos.priority import distance_from_zero, distances, embedded
from metropolis.policy.kairos.workflow import Stage, call_graph, in_parallel, remaining_s


def served(
    number: int,
    function: str,
    upstream: str | None,
    started_s: float,
    completed_s: float,
    waited_s: float = 0.0,
) -> ServedRequest:
    request = QueuedRequest(number, "p", function, 1, started_s - waited_s, 0.0, upstream)
    return ServedRequest(request, 0, started_s, completed_s, 1)


def spans(
    *told: tuple[str, str | None, float, float] | tuple[str, str | None, float, float, float],
) -> list[ServedRequest]:
    return [served(number, *one) for number, one in enumerate(told)]


def left_of(served_requests: list[ServedRequest]) -> dict[str, float]:
    return {
        one.request.function: left_s for one, left_s in remaining_s(call_graph(served_requests))
    }


def live(policy: Kairos, number: int, function: str, program: str, lasts_s: float = 1.0) -> None:
    """A program of one request, from its arrival to its end."""
    request = QueuedRequest(number, program, function, 1, 0.0, 0.0)
    policy.arrived(request)
    policy.completed(ServedRequest(request, 0, 0.0, lasts_s, 1))
    policy.program_ended(program)


# The shapes of the paper's figure 11: A leads to B, C and D.
def test_a_parallel_group_waits_for_its_longest() -> None:
    shape = spans(("A", None, 0, 1), ("B", "A", 1, 3), ("C", "A", 1, 6), ("D", "A", 2, 4))
    assert left_of(shape) == {"A": 6, "B": 2, "C": 5, "D": 2}


def test_one_after_the_other() -> None:
    shape = spans(("A", None, 0, 1), ("B", "A", 1, 3), ("C", "A", 3, 6), ("D", "A", 6, 7))
    assert left_of(shape) == {"A": 7, "B": 6, "C": 4, "D": 1}


def test_a_chain() -> None:
    shape = spans(("A", None, 0, 1), ("B", "A", 1, 3), ("C", "B", 3, 6), ("D", "C", 6, 7))
    assert left_of(shape) == {"A": 7, "B": 6, "C": 4, "D": 1}
    graph = call_graph(shape)
    assert [len(stage.children) for stage in graph] == [1]


def test_two_in_parallel_and_one_after_them() -> None:
    shape = spans(("A", None, 0, 1), ("B", "A", 1, 3), ("C", "A", 2, 6), ("D", "A", 6, 8))
    assert left_of(shape) == {"A": 7, "B": 4, "C": 6, "D": 2}


def test_in_a_loop_each_execution_follows_the_latest_of_its_upstream() -> None:
    loop = spans(
        ("code", None, 0, 4), ("test", "code", 4, 5), ("code", "test", 5, 8), ("test", "code", 8, 9)
    )
    left = sorted((one.request.function, s) for one, s in remaining_s(call_graph(loop)))
    assert left == [
        ("code", 4),
        ("code", 9),
        ("test", 1),
        ("test", 5),
    ]


@pytest.mark.parametrize("waited_s", [0, 100])
def test_neither_a_tool_nor_waiting_for_an_engine_is_counted(waited_s: float) -> None:
    found = spans(("A", None, 0, 1, 0), ("B", "A", 101, 103, waited_s))
    assert left_of(found) == {"A": 3, "B": 2}


def test_calls_that_were_sent_together_are_parallel_although_they_ran_in_turn() -> None:
    queued = spans(("A", None, 0, 1), ("B", "A", 1, 3, 0), ("C", "A", 3, 6, 2), ("D", "A", 6, 8, 0))
    assert left_of(queued) == {"A": 6, "B": 4, "C": 5, "D": 2}


@st.composite
def planned(draw: st.DrawFn, depth: int = 3) -> Stage:
    """A stage with children in groups; times are filled in later."""
    stage = Stage(served(0, "", None, 0, 0))
    if depth and draw(st.booleans()):
        for _ in range(draw(st.integers(1, 2))):
            stage.children += [draw(planned(depth - 1)) for _ in range(draw(st.integers(1, 3)))]
    return stage


@given(planned(), st.integers(0, 1 << 20))
def test_the_workflow_that_ran_is_the_one_that_is_found(tree: Stage, seed: int) -> None:
    """Executions wait at random before they start, which changes nothing."""
    draw, told = Random(seed), []

    def run(
        stage: Stage, upstream: str | None, arrived_s: float
    ) -> tuple[float, float, dict[str, float]]:
        """When all of it is over; how long it takes without waiting; and how long is left at the
        start of each execution below."""
        name = str(len(told))
        waited_s, latency_s = draw.randint(0, 9), draw.randint(1, 9)
        end_s = arrived_s + waited_s + latency_s
        told.append((name, upstream, arrived_s + waited_s, end_s, waited_s))
        left: dict[str, float] = {}
        for group in _halves(stage.children):
            ran = [run(child, name, end_s) for child in group]
            longest_s = max(child_s for _, child_s, _ in ran)
            left = {name: left_s + longest_s for name, left_s in left.items()}
            for child_end_s, _, below in ran:
                left |= below
                end_s = max(end_s, child_end_s)
            latency_s += longest_s
        return end_s, latency_s, {name: latency_s, **left}

    def _halves(children: list[Stage]) -> list[list[Stage]]:
        middle = len(children) // 2
        return [group for group in (children[:middle], children[middle:]) if group]

    *_, expected = run(tree, None, 0.0)
    assert left_of(spans(*told)) == pytest.approx(expected)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60))
def test_distances_are_those_of_scipy(values: list[float]) -> None:
    at = (np.arange(LEVELS) + 0.5) / LEVELS
    p, q = np.quantile(values, at), np.quantile([2 * v + 1 for v in values], at)
    assert wasserstein(p, q) == pytest.approx(wasserstein_distance(p, q))
    assert distances(np.vstack([p, q]))[0, 1] == pytest.approx(wasserstein(p, q))


@given(st.integers(1, 100), st.integers(0, 9))
def test_many_distances_are_those_of_each_two(count: int, seed: int) -> None:
    quantiles = np.sort(np.random.default_rng(seed).lognormal(size=(count, LEVELS)), axis=1)
    expected = [[wasserstein(p, q) for q in quantiles] for p in quantiles]
    assert distances(quantiles) == pytest.approx(np.array(expected))


@given(st.lists(st.floats(0, 1000), min_size=2, max_size=40))
def test_points_on_a_line_are_found_again(at: list[float]) -> None:
    places = np.array(at)
    apart = np.abs(places[:, None] - places)
    found = embedded(apart**2)
    assert np.abs(found[:, None] - found) == pytest.approx(apart, abs=1e-3 * (1 + apart.max()))


@given(st.permutations(range(8)), st.floats(0.01, 3))
def test_functions_that_have_less_left_come_first(order: list[int], spread: float) -> None:
    shape = np.linspace(0, spread, LEVELS)
    away = distance_from_zero([shape + 5 * place for place in order])
    assert list(np.argsort(away)) == list(np.argsort(order))


def test_a_distribution_converges_when_doubling_it_changes_little() -> None:
    latencies, draw = Latencies(), Random(1)
    looks = [count for count in range(1, 65) if latencies.add(draw.gauss(10, 1))]
    assert looks == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST]
    assert latencies.has_converged


def test_nothing_is_expected_of_a_function_before_its_distribution_has_converged() -> None:
    latencies = Latencies()
    for number in range(4 * FIRST):
        latencies.add(float(number))
        assert latencies.mean_beyond(0.0) is None
    for _ in range(64 * FIRST):
        latencies.add(float(FIRST))
    assert latencies.mean_beyond(0.0) == pytest.approx(FIRST, rel=0.1)
    assert latencies.mean_beyond(4.0 * FIRST) is None


@given(st.lists(st.floats(0, 1e6), min_size=FIRST, max_size=FIRST))
def test_quantiles_are_those_of_numpy(values: list[float]) -> None:
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    at = (np.arange(LEVELS) + 0.5) / LEVELS
    assert latencies.quantiles == pytest.approx(np.quantile(values, at))


def test_what_is_expected_of_a_request_grows_while_it_lasts() -> None:
    latencies = Latencies()
    for number in range(256):
        latencies.add(5.0 if number % 2 else 25.0)
    assert latencies.mean_beyond(0.0) == pytest.approx(15, abs=0.5)
    assert latencies.mean_beyond(10.0) == pytest.approx(25, abs=0.5)


def test_the_policy_learns_which_function_has_less_left() -> None:
    policy = Kairos()

    def waiting(function: str, program_arrived_s: float) -> QueuedRequest:
        return QueuedRequest(0, "q", function, 1, 50.0, program_arrived_s)

    early, late = waiting("long", 1.0), waiting("short", 2.0)
    assert policy.rank(early) < policy.rank(late)  # nothing is known: who began first
    for number in range(2 * FIRST):
        for function, lasts_s in (("long", 30.0), ("short", 1.0)):
            live(policy, number, function, f"{function} {number}", lasts_s)
    assert policy.version >= 1
    assert policy.rank(late) < policy.rank(early)
    assert policy.rank(waiting("short", 1.0)) < policy.rank(late)  # within a function: who began


def test_stages_that_touch_are_not_in_parallel() -> None:
    stages = [Stage(one) for one in spans(("B", "A", 1, 3), ("C", "A", 3, 5), ("D", "A", 4, 6))]
    assert [len(group) for group in in_parallel(stages)] == [1, 2]


def test_a_long_chain_is_followed_to_its_end() -> None:
    chain = spans(*((f"f{n}", f"f{n - 1}", n, n + 1) for n in range(5000)))
    assert left_of(chain) == {f"f{n}": 5000 - n for n in range(5000)}


def test_what_took_no_time_led_to_nothing() -> None:
    assert left_of(spans(("A", "B", 1, 1), ("B", "A", 1, 1), ("C", "A", 1, 3))) == {
        "A": 2, "B": 2, "C": 2
    }  # fmt: skip


def test_a_program_that_goes_on_is_learned_from_on_the_way() -> None:
    policy, numbers = Kairos(), count()
    for number in range(FIRST):
        live(policy, next(numbers), "long", f"p{number}", lasts_s=50.0)
    for number in range(PROGRAM_MAX):
        request = QueuedRequest(next(numbers), "q", "short", 1, 2.0 * number, 0.0, prefix=((1, 1),))
        policy.arrived(request)
        policy.completed(ServedRequest(request, 0, 2.0 * number, 2.0 * number + 1, 1))
        if number < PROGRAM_MAX - 1:
            assert len(policy._programs["q"]) == number + 1
    assert not policy._programs
    first, last = (QueuedRequest(0, "r", name, 1, 0.0, 0.0) for name in ("short", "new"))
    assert policy.rank(first) < policy.rank(last)


def test_within_a_function_who_began_first_goes_first_for_years() -> None:
    policy = Kairos()
    for day in range(1, 1000):
        policy.passed(86400.0 * day)
        starts_s = 86400.0 * day + np.arange(0.0, 10.0)
        requests = [QueuedRequest(day, "p", "f", 1, at_s, at_s) for at_s in starts_s]
        policy.arrived(requests[0])
        ranks = [policy.rank(request) for request in requests]
        assert ranks == sorted(set(ranks))


def test_of_too_many_functions_nothing_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metropolis.policy.kairos.policy.FUNCTIONS_MAX", 3)
    policy = Kairos()
    for number in range(5 * FIRST):
        live(policy, number, f"f{number % 5}", str(number), 1.0 + number % 5)
    ranks = [policy.rank(QueuedRequest(0, "p", f"f{n}", 1, 0.0, 0.0)) for n in range(5)]
    assert ranks[0] < ranks[1] < ranks[2] < ranks[3] == ranks[4]


@given(st.data())
def test_of_an_unknown_function_a_few_requests_at_a_time_go_first(data: st.DataObject) -> None:
    policy, numbers = Kairos(), count()
    for number in range(FIRST):
        live(policy, next(numbers), "known", f"k{number}")
    known = QueuedRequest(next(numbers), "k", "known", 1, 0.0, 0.0)
    first: list[QueuedRequest] = []
    for _ in range(4 * TRIALS):
        if first and data.draw(st.booleans()):
            policy.cancelled(first.pop())
        number = next(numbers)
        request = QueuedRequest(number, f"n{number}", "new", 1, 0.0, 0.0)
        policy.arrived(request)
        if len(first) < TRIALS:
            first.append(request)
            assert policy.rank(request) < policy.rank(known)
        else:
            assert policy.rank(request) > policy.rank(known)


def test_a_speculative_request_does_not_go_first_before_it_is_needed() -> None:
    policy = Kairos()
    for number in range(FIRST):
        live(policy, number, "known", f"k{number}")
    known = QueuedRequest(99, "k", "known", 1, 0.0, 0.0)
    guesses = [QueuedRequest(100 + n, f"g{n}", "new", 1, 0.0, 0.0) for n in range(TRIALS)]
    for guess in guesses:
        policy.arrived(replace(guess, speculative=True))
    needed = [QueuedRequest(200 + n, f"n{n}", "new", 1, 0.0, 0.0) for n in range(TRIALS)]
    for request in needed:
        policy.arrived(request)
        assert policy.rank(request) < policy.rank(known)
    policy.promoted(guesses[0])
    assert policy.rank(guesses[0]) > policy.rank(known)
    policy.cancelled(needed[0])
    policy.promoted(guesses[1])
    assert policy.rank(guesses[1]) < policy.rank(known)


def test_a_function_that_ended_is_forgotten() -> None:
    policy = Kairos(window=4 * TRIALS)
    request = QueuedRequest(0, "p", "old", 1, 0.0, 0.0)
    policy.arrived(request)
    rank, version = policy.rank(request), policy.version
    policy.completed(ServedRequest(request, 0, 0.0, 1.0, 1))
    policy.program_ended("p")
    waiting = QueuedRequest(1, "q", "old", 1, 0.0, 0.0)
    policy.arrived(waiting)
    policy.function_ended("old")
    assert policy.rank(waiting) > rank
    assert policy.version > version
    assert not policy._remaining
    assert not policy._trials


def test_who_was_tried_makes_place_when_its_program_ends() -> None:
    policy, learning = Kairos(window=4 * TRIALS), []
    for number in range(TRIALS):
        learning.append(QueuedRequest(number, f"n{number}", "new", 1, 0.0, 0.0))
        policy.arrived(learning[-1])
    late, later = (QueuedRequest(n, f"n{n}", "new", 1, 0.0, 0.0) for n in (98, 99))
    policy.arrived(late)
    policy.completed(ServedRequest(learning[0], 0, 0.0, 1.0, 1))
    policy.program_ended(learning[0].program)
    policy.arrived(later)
    assert policy.rank(later) < policy.rank(late)
    for request in learning[1:]:
        policy.completed(ServedRequest(request, 0, 0.0, 1.0, 1))
        policy.program_ended(request.program)
    assert policy.rank(later) == policy.rank(late)  # it is known
