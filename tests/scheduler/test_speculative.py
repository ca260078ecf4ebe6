"""Speculative requests go behind all others, under every policy, until they are promoted."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis._core import Profile
from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.policy.base import QueuedRequest, ServedRequest
from metropolis.policy.named import POLICIES, named, names_of
from metropolis.policy.queue import order_of
from metropolis.scheduler.base import Command, Place
from metropolis.sim.engines import SimulatedCluster
from metropolis.sim.options import PoolOptions

ENGINE = Profile(w_ms=10.0, g_ms=0.05, h_ms=2.0, kv_capacity_tokens=1 << 20, max_sequences=2)


class Served:
    """Requests at random moments, before one or two instances that serve two at a time each."""

    def __init__(self, policy: str, seed: int, instances: int) -> None:
        self.draw, self.now_s, self.sent = Random(seed), 0.0, 0
        dispatcher = LeastLoaded(Fleet.uniform(instances, 60_000, 20.0))
        plugin = named(POLICIES, policy)()
        self.cluster = SimulatedCluster([ENGINE] * instances, plugin, dispatcher, PoolOptions(), 2)
        self.open: dict[int, bool] = {}
        """Whether each request in progress is speculative."""
        self.waiting: set[int] = set()
        scheduler = self.cluster._scheduler
        self._schedule, self._interrupted = scheduler.schedule, scheduler.interrupted
        scheduler.schedule = self._checked  # type: ignore[method-assign]
        scheduler.interrupted = self._waits_again  # type: ignore[method-assign]
        self.ended: list[int] = []

    def _checked(self, now_s: float) -> list[Command]:
        commands = self._schedule(now_s)
        placed = [command.request for command in commands if isinstance(command, Place)]
        self.waiting -= {request.id for request in placed}
        for request in placed:
            assert request.speculative == self.open[request.id]
        if any(request.speculative for request in placed):
            assert all(self.open[number] for number in self.waiting)
        return commands

    def _waits_again(self, request_id: int, output_tokens: int, now_s: float) -> None:
        self.waiting.add(request_id)
        self._interrupted(request_id, output_tokens, now_s)

    def send(self) -> None:
        number, self.sent = self.sent, self.sent + 1
        self.open[number] = self.draw.random() < 0.5
        self.waiting.add(number)
        request = QueuedRequest(
            *(number, f"p{number // 2}", self.draw.choice("fg"), 20, self.now_s, self.now_s),
            step=self.draw.randrange(9),
            stages_left=self.draw.randint(1, 3),
            speculative=self.open[number],
        )
        self.cluster.send(request, self.draw.choice([1, 5, 40]))

    def promote(self) -> None:
        if speculative := [number for number, is_so in self.open.items() if is_so]:
            number = self.draw.choice(speculative)
            self.open[number] = False
            self.cluster.promote(number, self.now_s)

    def cancel(self) -> None:
        if self.open:
            number = self.draw.choice(list(self.open))
            del self.open[number]
            self.waiting.discard(number)
            self.cluster.cancel(number, self.now_s)
            self.ended.append(number)

    def serve(self) -> None:
        self.cluster.dispatch(self.now_s)
        next_s = self.cluster.next_event_sim_s()
        pause_s = self.draw.choice([0.0, 0.05, 0.3])
        self.now_s = next_s if self.draw.random() < 0.5 and self.open else self.now_s + pause_s
        for one in self.cluster.advance(self.now_s):
            del self.open[one.request.id]
            self.ended.append(one.request.id)

    def run(self) -> None:
        for _ in range(120):
            self.draw.choice([self.send, self.send, self.promote, self.cancel, self.serve])()
            self.cluster.dispatch(self.now_s)
            scheduler = self.cluster._scheduler
            assert scheduler.waiting == len(self.waiting)
            assert scheduler.waiting_speculative == sum(self.open[one] for one in self.waiting)
        while self.open:
            self.serve()
        assert sorted(self.ended) == list(range(self.sent))


@pytest.mark.parametrize("policy", [*names_of(POLICIES), "step+kairos"])
@given(seed=st.integers(0, 1 << 30), instances=st.integers(1, 2))
@settings(max_examples=15, deadline=None)
def test_no_request_waits_behind_a_speculative_one(policy: str, seed: int, instances: int) -> None:
    # A policy that preempts keeps requests at their instance; there this holds for each alone.
    Served(policy, seed, 1 if named(POLICIES, policy)().preempts else instances).run()


@pytest.mark.parametrize("policy", [*names_of(POLICIES), "step+kairos"])
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=30, deadline=None)
def test_speculative_requests_that_only_wait_do_not_reorder_the_others(
    policy: str, seed: int
) -> None:
    """Against a policy that knows nothing of them."""
    draw, now_s = Random(seed), 0.0
    with_guesses, without = named(POLICIES, policy)(), named(POLICIES, policy)()
    waiting: list[QueuedRequest] = []
    guesses: list[QueuedRequest] = []
    for number in range(120):
        now_s += draw.choice([0.0, 0.25, 3.0])
        program = f"p{draw.randrange(8)}"
        request = QueuedRequest(
            *(number, program, draw.choice("fg"), 20, now_s, 0.0),
            step=draw.randrange(9),
            stages_left=draw.randint(1, 3),
            speculative=draw.random() < 0.5,
        )
        with_guesses.arrived(request)
        if request.speculative:
            guesses.append(request)
            continue
        without.arrived(request)
        waiting.append(request)
        if draw.random() < 0.7:
            first = min(waiting, key=partial(order_of, without))
            waiting.remove(first)
            began_s, now_s = now_s, now_s + draw.choice([0.5, 1.0, 4.0])
            for each in (with_guesses, without):
                each.passed(began_s)
                each.started(first, began_s)
                each.passed(now_s)
                each.completed(ServedRequest(first, 0, began_s, now_s, 1))
            if not any(one.program == first.program for one in waiting):
                for guess in [one for one in guesses if one.program == first.program]:
                    guesses.remove(guess)
                    with_guesses.cancelled(guess)
                for each in (with_guesses, without):
                    each.program_ended(first.program)
        orders = [sorted(waiting, key=partial(order_of, each)) for each in (with_guesses, without)]
        assert orders[0] == orders[1]


def test_a_policy_that_ranks_speculative_ones_like_others_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("metropolis.policy.queue.SPECULATIVE_PRIORITY", 0)
    with pytest.raises(AssertionError):  # noqa: PT012
        for seed in range(20):
            Served("fcfs", seed, 1).run()
