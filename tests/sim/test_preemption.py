"""Policies that preempt: the first ranks run, no token is lost, service is measured correctly."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis._core import InstancePool, Profile, Request
from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import LeastLoaded, RoundRobin
from metropolis.policy.agentix.policy import Atlas
from metropolis.policy.base import QueuedRequest, ServedRequest
from metropolis.sim.engines import SimulatedCluster
from metropolis.sim.instance import SimulatedInstance, SimulatedRequest, Start
from metropolis.sim.options import PoolOptions, Preemption
from metropolis.sim.workload_simulation import WorkloadSimulation
from metropolis.trace.generate import agentix

SLOTS = 3
PREEMPTIONS: tuple[Preemption, ...] = ("recompute", "swap", "swap_all")


def profile(kv_capacity_tokens: int = 4096) -> Profile:
    return Profile(
        w_ms=10.0,
        g_ms=0.05,
        h_ms=2.0,
        b_ms=0.1,
        kv_capacity_tokens=kv_capacity_tokens,
        max_sequences=SLOTS,
        kv_bytes_per_token=100_000,
        pcie_gb_per_s=10.0,
        host_gb=0.05,
    )


class Watched(Atlas):
    """Records the waiting and the running requests."""

    def __init__(self) -> None:
        super().__init__((0.2, 0.4), beta=4.0)
        self.waiting: dict[int, QueuedRequest] = {}
        self.running: dict[int, QueuedRequest] = {}
        self.preempted_count = 0

    def arrived(self, request: QueuedRequest) -> None:
        super().arrived(request)
        assert request.id not in self.waiting | self.running
        self.waiting[request.id] = request

    def started(self, request: QueuedRequest, now_s: float) -> None:
        super().started(request, now_s)
        self.running[request.id] = self.waiting.pop(request.id)

    def preempted(self, request: QueuedRequest, now_s: float) -> None:
        super().preempted(request, now_s)
        del self.running[request.id]
        self.waiting[request.id] = request
        self.preempted_count += 1

    def completed(self, served: ServedRequest) -> None:
        super().completed(served)
        del self.running[served.request.id]


def drive(
    arrivals: list[tuple[QueuedRequest, int]],
    policy: Watched,
    engine: Profile,
    preemption: Preemption,
) -> tuple[list[ServedRequest], SimulatedCluster]:
    fleet = Fleet.uniform(1, engine.kv_capacity_tokens, 50.0)
    engines = SimulatedCluster(
        [engine], policy, LeastLoaded(fleet), PoolOptions(preemption=preemption)
    )
    coming, answered = arrivals[::-1], list[ServedRequest]()
    while coming or policy.waiting or policy.running:
        now_s = min(engines.next_event_sim_s(), coming[-1][0].arrived_s if coming else inf)
        answered += engines.advance(now_s)
        while coming and coming[-1][0].arrived_s <= now_s:
            engines.send(*coming.pop())
        engines.dispatch(now_s)
        # more run while a request is leaving; fewer when memory is short
        if len(policy.running) == SLOTS and policy.waiting and engine.kv_capacity_tokens > 1000:
            first = min(policy.waiting.values(), key=policy.rank)
            last = max(policy.running.values(), key=policy.rank)
            assert policy.rank(last) < policy.rank(first)
    return answered, engines


@given(st.integers(0, 1 << 30), st.sampled_from([256, 4096]), st.sampled_from(PREEMPTIONS))
def test_the_first_rank_runs_and_all_requests_complete(
    seed: int, tokens: int, preemption: Preemption
) -> None:
    draw, arrivals, now_s = Random(seed), [], 0.0
    for number in range(draw.randint(1, 25)):
        now_s += draw.choice([0.0, 0.05, 0.5])
        program = draw.choice("pqr")
        sent = QueuedRequest(number, program, "f", draw.randint(1, 120), now_s, 0.0)
        arrivals.append((sent, draw.randint(1, 120)))
    policy, engine = Watched(), profile(tokens)
    answered, engines = drive(arrivals, policy, engine, preemption)
    assert engines.preemptions >= policy.preempted_count
    found = {served.request.id: served for served in answered}
    assert len(found) == len(answered) == len(arrivals)
    for sent, output_tokens in arrivals:
        served = found[sent.id]
        alone = Request(sent.prompt_tokens, output_tokens)
        assert served.output_tokens == output_tokens
        assert served.started_s >= sent.arrived_s
        # a resumed prefill yields a token, too, without the cost of a decode beyond w
        assert served.latency_s >= 0.99 * InstancePool.isolated_sim_s(engine, alone)


@pytest.mark.parametrize("preemption", PREEMPTIONS)
def test_a_preempted_long_answer_lets_a_short_one_pass_and_resumes(preemption: Preemption) -> None:
    engine = profile()
    long = [QueuedRequest(n, f"long {n}", "f", 10, 0.0, 0.0) for n in range(SLOTS)]
    short = QueuedRequest(SLOTS, "short", "f", 10, 0.5, 0.5)
    policy = Watched()
    arrivals = [*((one, 100) for one in long), (short, 5)]
    answered, engines = drive(arrivals, policy, engine, preemption)
    assert answered[0].request.id == short.id
    assert policy.preempted_count == engines.preemptions >= 1
    ended_s = {served.request.id: served.completed_s for served in answered}
    assert ended_s[short.id] < 0.7
    # a requeued request computes its tokens again, but none is generated twice
    alone_s = InstancePool.isolated_sim_s(engine, Request(10, 100))
    assert max(ended_s.values()) == pytest.approx(alone_s + 0.1, rel=0.2)


@pytest.mark.parametrize("waits_s", [0.0, 0.5])
def test_the_host_keeps_nothing_of_a_cancelled_request(waits_s: float) -> None:
    """Cancelled while it leaves its place, and while it waits for another."""
    engine = profile()
    engine.g_ms = 1.0
    instance = SimulatedInstance(0, engine, PoolOptions(preemption="swap"))
    instance.submit(
        SimulatedRequest(QueuedRequest(0, "p", "f", 100, 0.0, 0.0), 50), 0, 0.0, Start()
    )
    instance.abort(0, 0.255)
    assert len(list(instance.advance(0.255 + waits_s))) == (waits_s > 0)
    instance.cancel(0, 0.255 + waits_s)
    assert list(instance.advance(1.0)) == []
    again = SimulatedRequest(QueuedRequest(0, "p", "f", 100, 1.0, 1.0), 1)
    instance.submit(again, 0, 1.0, Start())
    (served,) = instance.advance(2.0)
    assert served.latency_s > 0.1  # it computes the whole prompt


def test_the_host_keeps_nothing_of_a_request_that_has_moved() -> None:
    engine = profile()
    engine.g_ms = 1.0
    fleet = Fleet.uniform(2, engine.kv_capacity_tokens, 50.0)
    cluster = SimulatedCluster(
        [engine] * 2, Watched(), RoundRobin(fleet), PoolOptions(preemption="swap")
    )
    cluster.send(QueuedRequest(0, "p", "f", 100, 0.0, 0.0), 50)
    cluster.dispatch(0.0)
    first, second = cluster._instances
    first.abort(0, 0.255)
    assert cluster.advance(0.5) == []
    cluster.dispatch(0.5)
    assert second.held_tokens > 0  # it has moved
    again = SimulatedRequest(QueuedRequest(0, "p", "f", 100, 0.5, 0.5), 1)
    first.submit(again, 0, 0.5, Start())
    (served,) = first.advance(2.0)
    assert isinstance(served, ServedRequest)
    assert served.latency_s > 0.1  # it computes the whole prompt


@pytest.mark.parametrize("name", agentix.WORKLOADS)
def test_a_programs_conversation_is_not_recomputed(name: str) -> None:
    """The time of a lone program: its answers, and what its prompts add to the earlier ones."""
    (program,) = agentix.workload(name, 1, 1.0, seed=3)
    engine = Profile(w_ms=1.0, g_ms=1.0, kv_capacity_tokens=1 << 20, block_tokens=1)
    ended_s = {}
    for reuse in (False, True):
        fleet = Fleet.uniform(1, engine.kv_capacity_tokens, 1000.0)
        serving = WorkloadSimulation(
            [program], [engine], Atlas(), LeastLoaded(fleet), PoolOptions(reuse)
        )
        ended_s[reuse] = serving.run().programs[0].ended_sim_s - program.arrival_s
    texts: dict[int | None, int] = {}
    for call in program.calls:
        texts |= dict(call.prefix)
    # parallel calls that arrive together each compute the tokens that are new to all of them
    bound_s = sum(texts.values()) * (5 if name == "LATS" else 1) / 1000
    answers_s = sum(call.output_tokens for call in program.calls) / 1000
    assert ended_s[True] < bound_s + answers_s < ended_s[False]
