"""A policy that names the requests with new ranks ranks no others; the commands are equal."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.policy.agentix.policy import Atlas, Plas
from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.policy.combined import CHANGES_MAX, Combined
from metropolis.policy.faults import PluginError
from metropolis.policy.fixed import Fcfs, StepFirst
from metropolis.policy.mlfq import Mlfq
from metropolis.policy.queue import RequestQueue
from metropolis.scheduler.base import Command, InstanceLimits, Place, Preempt, Report
from metropolis.scheduler.scheduler import Scheduler

MAKES: list[Callable[[], Policy]] = [
    partial(Mlfq, (1.0, 2.0), promote_s=2.0),
    partial(Plas, (1.0, 2.0), beta=0.5),
    partial(Plas, (1.0, 2.0), beta=0.5, by_program=True),
    partial(Atlas, (1.0, 2.0), beta=0.5),
    lambda: Combined([StepFirst(2), Plas((1.0, 2.0), beta=0.5)]),
    lambda: Combined([Mlfq((1.0, 2.0), promote_s=2.0), Fcfs()]),
]


def silent(policy: Policy) -> Policy:
    """`policy`, which names no requests."""
    policy.reranked = lambda since: None  # type: ignore[method-assign]
    return policy


def commands(policy: Policy, seed: int) -> list[Command]:
    """What a scheduler with two or three small instances does in a random stream of events."""
    draw, now_s, sent, found = Random(seed), 0.0, 0, list[Command]()
    count = draw.randint(2, 3)
    limits = InstanceLimits(2, kv_tokens=draw.choice([50, 1000]))
    dispatcher = LeastLoaded(Fleet.uniform(count, 1000, 20.0))
    scheduler = Scheduler(policy, dispatcher, [limits] * count)
    for instance in range(count):
        scheduler.instance_up(instance, 0.0)
    places: dict[int, tuple[Place, float]] = {}
    waits: set[int] = set()

    def carry_out() -> None:
        is_repeated = True
        while is_repeated:
            new = scheduler.schedule(now_s)
            found.extend(new)
            is_repeated = False
            for command in new:
                match command:
                    case Place(request):
                        places[request.id] = command, now_s
                        waits.discard(request.id)
                    case Preempt(request):
                        del places[request.id]
                        waits.add(request.id)
                        scheduler.interrupted(request.id, 1, now_s)
                        is_repeated = True
                    case Report(instance):
                        scheduler.progressed(instance, 20 * len(scheduler.running(instance)))
                        is_repeated = True

    for _ in range(150):
        now_s += draw.choice([0.0, 0.25, 0.5, draw.random()])
        event = draw.randrange(5)
        if event < 2:
            request = QueuedRequest(sent, f"p{draw.randrange(4)}", "f", 20, now_s, 0.0)
            scheduler.arrived(request)
            waits.add(sent)
            sent += 1
        elif event == 2 and places:
            place, began_s = places.pop(draw.choice(sorted(places)))
            scheduler.finished(ServedRequest(place.request, place.instance, began_s, now_s, 1))
        elif event == 3 and waits and draw.random() < 0.2:
            number = draw.choice(sorted(waits))
            waits.remove(number)
            scheduler.cancelled(number, now_s)
        carry_out()
    return found


@pytest.mark.parametrize("make", MAKES)
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=50, deadline=None)
def test_the_commands_are_those_of_a_policy_that_names_none(
    make: Callable[[], Policy], seed: int
) -> None:
    assert commands(make(), seed) == commands(silent(make()), seed)


class Counting(Plas):
    """Records which requests it ranks."""

    def __init__(self) -> None:
        super().__init__((1.0, 1.0), beta=1e9)
        self.ranked: list[int] = []

    def rank(self, request: QueuedRequest) -> int:
        self.ranked.append(request.id)
        return super().rank(request)


def test_a_request_that_sinks_is_compared_at_its_instance_alone() -> None:
    policy = Counting()
    dispatcher = LeastLoaded(Fleet.uniform(2, 1000, 20.0))
    scheduler = Scheduler(policy, dispatcher, [InstanceLimits(1)] * 2)
    for instance in range(2):
        scheduler.instance_up(instance, 0.0)
    policy.program_times_s = lambda name: (1.5 if name == "low" else 0.0, 0.0)  # type: ignore[method-assign]
    for number, (program, now_s) in enumerate(
        [("p", 10.0), ("q", 10.5), ("low", 10.5), ("low", 10.5)]
    ):
        scheduler.arrived(QueuedRequest(number, program, "f", 20, now_s, now_s))
        scheduler.schedule(now_s)
    assert [scheduler.running(instance) for instance in range(2)] == [[0], [1]]
    policy.ranked.clear()
    preempt, place = scheduler.schedule(11.0)
    assert isinstance(preempt, Preempt)
    assert isinstance(place, Place)
    assert (preempt.request.id, place.request.id) == (0, 2)
    assert set(policy.ranked) == {0, 2}


class Named(Policy):
    """Names what changed at each time that passed: whole seconds."""

    rank_bits = 8

    def rank(self, request: QueuedRequest) -> int:
        return 0

    def passed(self, now_s: float) -> None:
        self.version = int(now_s)

    def reranked(self, since: int) -> range:
        return range(since, self.version)


class Tens(Named):
    """Names ids from ten up, every second second."""

    def passed(self, now_s: float) -> None:
        self.running_version = int(now_s) // 2

    def reranked(self, since: int) -> range:
        return range(10 + since, 10 + self.running_version)


def test_a_chain_names_what_its_policies_name() -> None:
    chain = Combined([StepFirst(), Named(), Tens()])
    assert chain.reranked(0) == set()
    sums = []
    for second in range(1, 6):
        chain.passed(float(second))
        sums.append(chain.version + chain.running_version)
    assert sums == [1, 3, 4, 6, 7]
    assert chain.reranked(7) == set()
    assert chain.reranked(4) == {3, 4, 11}
    assert chain.reranked(0) == {0, 1, 2, 3, 4, 10, 11}
    assert chain.reranked(2) is None


def test_a_chain_names_nothing_if_one_of_its_policies_does_not() -> None:
    chain = Combined([Named(), silent(Tens())])
    for second in range(1, 4):
        chain.passed(float(second))
    assert chain.reranked(3) == {2}
    assert chain.reranked(1) is None


def test_a_chain_keeps_few_changes() -> None:
    chain = Combined([StepFirst(), Named()])
    for second in range(CHANGES_MAX + 1):
        chain.passed(float(second))
    assert chain.reranked(0) is None
    assert chain.reranked(1) == set(range(1, CHANGES_MAX))


def test_a_queue_ranks_again_what_is_named() -> None:
    policy = Counting()
    queue = RequestQueue(policy)
    for number in range(10):
        request = QueuedRequest(number, "p", "f", 20, 0.0, 0.0)
        policy.arrived(request)
        policy._calls[number].level = 1
        queue.push(request)
    policy.ranked.clear()
    policy.reranked = lambda since: [7, 99]  # type: ignore[method-assign]
    policy._calls[7].level = 0
    policy.version += 1
    assert queue.first().id == 7
    assert policy.ranked == [7]


def test_a_queue_that_ranks_named_requests_again_keeps_few_old_places() -> None:
    policy, requests = Plas(), [QueuedRequest(n, "p", "f", 20, 0.0, 0.0) for n in range(10)]
    queue = RequestQueue(policy)
    for request in requests:
        queue.push(request)
    policy.reranked = lambda since: range(10)  # type: ignore[method-assign]
    for _ in range(1000):
        policy.version += 1
        queue.first()
    assert len(queue._heap) <= 1100
    assert [queue.pop().id for _ in range(10)] == list(range(10))


def test_what_names_no_ids_is_told() -> None:
    policy = Plas()
    queue = RequestQueue(policy)
    queue.push(QueuedRequest(0, "p", "f", 20, 0.0, 0.0))
    policy.reranked = lambda since: 7  # type: ignore[method-assign, assignment, return-value]
    policy.version += 1
    sentence = "^the policy Plas returned 7 in reranked; it should be ids or None$"
    with pytest.raises(PluginError, match=sentence):
        queue.first()
