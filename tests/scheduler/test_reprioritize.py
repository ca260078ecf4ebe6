"""Ranks change while requests queue in the engine: the engine follows, where it can."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis._core import Profile
from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import LeastLoaded, RoundRobin
from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.policy.faults import PluginError
from metropolis.policy.kairos.latency import FIRST
from metropolis.policy.kairos.policy import Kairos
from metropolis.scheduler.base import InstanceLimits, Place, Reprioritize
from metropolis.scheduler.scheduler import Scheduler
from metropolis.sim.engines import SimulatedCluster
from metropolis.sim.options import PoolOptions

ENGINE = Profile(w_ms=10.0, kv_capacity_tokens=1 << 16, max_sequences=1)
FLEET = Fleet.uniform(1, 1 << 16, 20.0)


class ByFunction(Policy):
    """Ranks by the place of the function in `order`."""

    order = "abc"

    def rank(self, request: QueuedRequest) -> int:
        if request.function not in self.order:
            raise KeyError(request.function)
        return self.order.index(request.function)

    def change(self, order: str) -> None:
        self.order = order
        self.version += 1


def request(number: int, function: str, arrived_s: float = 0.0) -> QueuedRequest:
    return QueuedRequest(number, f"p{number}", function, 8, arrived_s, arrived_s)


TIMES = st.integers(0, 60).map(lambda n: n / 128)


@given(
    st.lists(st.tuples(TIMES, st.sampled_from("abc"), st.integers(1, 9)), min_size=8, max_size=25),
    st.lists(st.tuples(TIMES, st.permutations("abc").map("".join)), min_size=1, max_size=8),
)
def test_the_next_request_is_the_first_in_the_order_of_that_moment(
    arrivals: list[tuple[float, str, int]], changes: list[tuple[float, str]]
) -> None:
    policy = ByFunction()
    cluster = SimulatedCluster([ENGINE], policy, LeastLoaded(FLEET), PoolOptions())
    arrivals, changes = sorted(arrivals), sorted(changes)
    requests = [request(number, name, at_s) for number, (at_s, name, _) in enumerate(arrivals)]
    served: list[ServedRequest] = []
    for now_s in sorted({at_s for at_s, *_ in [*arrivals, *changes]} | {inf}):
        while (due_s := cluster.next_event_sim_s()) <= now_s and due_s < inf:
            served += cluster.advance(due_s)
            cluster.dispatch(due_s)
        for one, (_, _, tokens) in zip(requests, arrivals, strict=True):
            if one.arrived_s == now_s:
                cluster.send(one, tokens)
        for at_s, order in changes:
            if at_s == now_s:
                policy.change(order)
        if now_s < inf:
            served += cluster.advance(now_s)
            cluster.dispatch(now_s)

    left, free_s, expected = list(requests), 0.0, []
    ended_s = {one.request.id: one.completed_s for one in served}
    while left:
        start_s = max(free_s, min(one.arrived_s for one in left))
        order = [ByFunction.order, *(order for at_s, order in changes if at_s <= start_s)][-1]
        here = [one for one in left if one.arrived_s <= start_s]
        first = min(here, key=lambda one: (order.index(one.function), one.arrived_s, one.id))
        left.remove(first)
        expected.append(first.id)
        free_s = ended_s[first.id]
    assert [one.request.id for one in served] == expected


def test_what_kairos_learns_reaches_the_queue_of_the_engine() -> None:
    policy = Kairos()
    cluster = SimulatedCluster([ENGINE], policy, RoundRobin(FLEET), PoolOptions())
    for number, function in enumerate(["long", "short"] * FIRST):  # all are at the engine
        cluster.send(request(number, function), 100 if function == "long" else 10)
    for number in range(100, 110):  # not among the first of an unknown function: last
        cluster.send(request(number, "long"), 100)
    cluster.send(request(110, "short"), 10)
    cluster.dispatch(0.0)
    ended: list[int] = []
    while (due_s := cluster.next_event_sim_s()) < inf:
        for one in cluster.advance(due_s):
            ended.append(one.request.id)
            cluster.program_ended(one.request.program)
        cluster.dispatch(due_s)
    assert ended[2 * FIRST :] == [110, *range(100, 110)]  # both functions are known


def scheduler_of(reprioritizes: bool, policy: Policy) -> Scheduler:
    limits = InstanceLimits(reprioritizes=reprioritizes)
    scheduler = Scheduler(policy, LeastLoaded(FLEET), [limits])
    scheduler.instance_up(0, 0.0)
    return scheduler


def test_commands_name_what_has_changed_once() -> None:
    policy = ByFunction()
    scheduler = scheduler_of(True, policy)
    for number, function in enumerate("abc"):
        scheduler.arrived(request(number, function))
    assert [type(one) for one in scheduler.schedule(0.0)] == [Place] * 3
    policy.change("bac")
    assert scheduler.schedule(1.0) == [Reprioritize(0, {0: 1, 1: 0})]
    assert scheduler.schedule(2.0) == []


@pytest.mark.parametrize("preempts", [False, True])
def test_an_instance_that_cannot_gets_no_command(preempts: bool) -> None:
    """Nor does one under a policy that preempts: its requests wait in front of the instance."""
    policy = ByFunction()
    policy.preempts = preempts
    scheduler = scheduler_of(preempts, policy)
    scheduler.arrived(request(0, "a"))
    scheduler.schedule(0.0)
    policy.change("bac")
    assert scheduler.schedule(1.0) == []


def test_a_policy_that_fails_on_a_running_request_is_reported() -> None:
    policy = ByFunction()
    faults: list[PluginError] = []
    scheduler = Scheduler(
        policy,
        LeastLoaded(FLEET),
        [InstanceLimits(reprioritizes=True)],
        on_fault=faults.append,
    )
    scheduler.instance_up(0, 0.0)
    for number, function in enumerate("ab"):
        scheduler.arrived(request(number, function))
    scheduler.schedule(0.0)
    policy.change("b")
    assert scheduler.schedule(1.0) == [Reprioritize(0, {1: 0})]
    (fault,) = faults
    assert "ByFunction" in str(fault)
