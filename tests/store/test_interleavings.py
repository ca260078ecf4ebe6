"""Random interleavings of all operations of a controller and workers, against a simple model."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.store.base import FencedOutError, RunInfo, Server
from metropolis.store.claim import Claim, Lookahead
from metropolis.store.execution import Execution
from metropolis.types import Dispatch
from metropolis.world.entities import AGENT, Entity
from metropolis.world.parts import from_parts, to_parts

COUNT = 4
NAMES = tuple("abcd")
HOUR_S = 3600.0
AGENTS = st.sets(st.integers(0, COUNT - 1), min_size=1).map(sorted).map(tuple)


@dataclass
class Cluster:
    """A dispatched cluster of the model; `holder` is the valid claim, if there is one."""

    step: int
    agents: tuple[int, ...]
    holder: int | None = None
    expires: bool = False


@dataclass
class Model:
    """The expected state of the store."""

    steps: list[int] = field(default_factory=lambda: [0] * COUNT)
    minds: list[object] = field(default_factory=lambda: [None] * COUNT)
    queue: dict[tuple[int, int], Cluster] = field(default_factory=dict)
    acknowledged: list[tuple[int, tuple[int, ...], int]] = field(default_factory=list)
    """(step, agents, number of the claim)"""
    until: list[int] = field(default_factory=lambda: [0] * COUNT)
    changed: set[tuple[str, int]] = field(default_factory=set)
    """(worker, agent) of steps started and not committed: the worker's agent state is stale."""
    answers: dict[int, set[str]] = field(default_factory=lambda: {i: set() for i in range(COUNT)})
    released: int = 0

    def fits(self, claim: Claim) -> bool:
        cluster = self.queue.get((claim.step, claim.agents[0]))
        return (
            cluster is not None
            and (cluster.step, cluster.agents) == (claim.step, claim.agents)
            and cluster.holder in (None, claim.number)
        )


class Interleavings(RuleBasedStateMachine):
    """One run, two controllers, three workers."""

    server: Server

    def __init__(self) -> None:
        super().__init__()
        self.run = uuid.uuid4().hex
        self.store = self.server.store(self.run)
        bodies = [Entity(name, (10 * i, 0), AGENT) for i, name in enumerate(NAMES)]
        info = RunInfo("model", 1, NAMES, 0, 99, "chebyshev", 1.0)
        self.store.begin(info, bodies, dict.fromkeys(range(COUNT)))
        self.fences = [0, self.store.take_lease("first", 0)]
        self.claims: list[Claim] = []
        self.model = Model()

    def teardown(self) -> None:
        self.store.release_lease(self.fences[-1])
        self.server.remove(self.run)

    @rule()
    def change_controller(self) -> None:
        self.fences.append(self.store.take_lease(f"holder {len(self.fences)}", 0))
        assert self.fences[-1] > self.fences[-2]

    @rule(agents=AGENTS, more=st.integers(0, 4))
    def dispatch(self, agents: tuple[int, ...], more: int) -> None:
        """Dispatch those of `agents` that are at the step of the first one."""
        step = self.model.steps[agents[0]]
        agents = tuple(agent for agent in agents if self.model.steps[agent] == step)
        ahead = {}
        if len(agents) == 1 and more:
            self.model.until[agents[0]] = max(self.model.until[agents[0]], step + 1 + more)
            ahead = {agents[0]: Lookahead(step + 1 + more, (10 * agents[0], 0), 10.0 * more)}
        edges = {agents[0]: None}
        self.store.dispatch(self.fences[-1], [Dispatch(step, agents)], edges, 0, ahead)
        if (known := self.model.queue.get((step, agents[0]))) and known.agents == agents:
            return
        self.model.queue = {
            name: cluster
            for name, cluster in self.model.queue.items()
            if not set(cluster.agents) & set(agents)
        }
        self.model.queue[step, agents[0]] = Cluster(step, agents)

    @rule(agents=AGENTS)
    def dispatch_what_is_committed(self, agents: tuple[int, ...]) -> None:
        step = min(self.model.steps[agent] for agent in agents) - 1
        if step >= 0:
            self.store.dispatch(self.fences[-1], [Dispatch(step, agents)], {}, 0)

    @rule(agents=AGENTS)
    def dispatch_what_is_apart(self, agents: tuple[int, ...]) -> None:
        steps = {self.model.steps[agent] for agent in agents}
        if len(steps) > 1:
            with pytest.raises(ValueError):  # noqa: PT011 -- the model checks the effect
                self.store.dispatch(self.fences[-1], [Dispatch(max(steps), agents)], {}, 0)

    @rule(agents=AGENTS, old=st.integers(0, 100))
    def dispatch_with_a_stale_fence(self, agents: tuple[int, ...], old: int) -> None:
        stale = self.fences[old % (len(self.fences) - 1)]
        with pytest.raises(FencedOutError):
            self.store.dispatch(stale, [Dispatch(self.model.steps[agents[0]], agents)], {}, 0)

    @rule(worker=st.sampled_from(["u", "v w", "x"]), expires=st.booleans())
    def claim(self, worker: str, expires: bool) -> None:
        for cluster in self.model.queue.values():
            if cluster.expires:
                cluster.holder, cluster.expires = None, False
        ready = [cluster for cluster in self.model.queue.values() if cluster.holder is None]
        claim = self.store.claim(worker, 0.0 if expires else HOUR_S)
        if claim is None:
            assert not ready
            return
        cluster = self.model.queue[claim.step, claim.agents[0]]
        assert cluster in ready
        assert cluster.agents == claim.agents
        assert cluster.step == min(other.step for other in ready)
        for agent, mind in claim.minds.items():
            assert from_parts(mind) == self.model.minds[agent]
        for agent in set(claim.agents) - set(claim.minds):
            assert self.model.minds[agent] == [worker, claim.step]
            assert (worker, agent) not in self.model.changed
        self.model.changed |= {(worker, agent) for agent in claim.agents}
        until = self.model.until[claim.agents[0]] if len(claim.agents) == 1 else 0
        assert claim.until == (until if until > claim.step + 1 else 0)
        known = {key.digest for key in claim.answers}
        assert known == set().union(*(self.model.answers[agent] for agent in claim.agents))
        seen = {entity.name: entity for _, entity in claim.snapshot.versions}
        for agent in claim.agents:
            assert seen[NAMES[agent]].get("at", 0) == claim.step
        if claim.continues:
            far = claim.until - claim.step - 1
            agent = claim.agents[0]
            assert {NAMES[i] for i in range(COUNT) if abs(i - agent) <= far} <= set(seen)
        cluster.holder, cluster.expires = claim.number, expires
        self.claims.append(claim)

    @precondition(lambda self: self.claims)
    @rule(which=st.integers(0, 1000), continues=st.booleans())
    def commit(self, which: int, continues: bool) -> None:
        """Commit any claim, also lost and committed ones."""
        claim = self.claims[which % len(self.claims)]
        lease_s = HOUR_S if continues else None
        execution = self.execution(claim)
        accepted = self.store.commit(claim, execution, lease_s=lease_s)
        if self.model.fits(claim):
            assert accepted
            first, following = claim.agents[0], claim.step + 1
            dispatched = len(claim.agents) == 1 and self.model.until[first] > following
            del self.model.queue[claim.step, first]
            self.model.changed -= {(claim.worker, agent) for agent in claim.agents}
            if dispatched:
                holder = claim.number if continues else None
                self.model.queue[following, first] = Cluster(following, claim.agents, holder)
            if continues:  # even if it may not
                self.claims += [claim.following(execution)] if dispatched else []
                self.model.changed |= {(claim.worker, agent) for agent in claim.agents}
            self.model.acknowledged.append((claim.step, claim.agents, claim.number))
            for agent in claim.agents:
                self.model.steps[agent] += 1
                self.model.minds[agent] = [claim.worker, claim.step + 1]
                self.model.answers[agent] = set()
        elif accepted:  # a repetition of its own commit
            assert (claim.step, claim.agents, claim.number) in self.model.acknowledged

    def execution(self, claim: Claim) -> Execution:
        writes = {
            NAMES[agent]: Entity(NAMES[agent], (10 * agent, 0), AGENT, {"at": claim.step + 1})
            for agent in claim.agents
        }
        number, minds = {"number": claim.number}, self.minds(claim)
        return Execution(claim.step, claim.agents, number, writes, [], {}, minds)

    def minds(self, claim: Claim) -> dict[int, dict[str, bytes]]:
        return {agent: to_parts([claim.worker, claim.step + 1]) for agent in claim.agents}

    @precondition(lambda self: self.claims)
    @rule(which=st.integers(0, 1000), gives_back=st.booleans())
    def hold(self, which: int, gives_back: bool) -> None:
        claim = self.claims[which % len(self.claims)]
        cluster = self.model.queue.get((claim.step, claim.agents[0]))
        held = cluster is not None and cluster.holder == claim.number
        if gives_back:
            self.store.give_back(claim)
        else:
            assert self.store.extend(claim, HOUR_S) == held
        if cluster is not None and held:
            cluster.holder = None if gives_back else claim.number
            cluster.expires = False

    @rule(agent=st.integers(0, COUNT - 1), digest=st.sampled_from("pqr"), late=st.booleans())
    def keep_answer(self, agent: int, digest: str, late: bool) -> None:
        key = Key(agent, self.model.steps[agent] - late, "plan", digest, 0)
        self.store.keep_answer(key, Completion("yes", 1, 1, "stop"))
        if not late:
            self.model.answers[agent].add(digest)

    @rule()
    def collect(self) -> None:
        self.model.released = min(self.model.steps)
        self.store.collect(self.fences[-1], self.model.released)

    @invariant()
    def stands_as_it_should(self) -> None:
        nodes = self.store.nodes()
        assert list(nodes.steps) == self.model.steps
        assert [
            (a.execution.step, a.execution.agents, a.execution.actions["number"])
            for a in self.store.acknowledgements("0", 0)
        ] == [ack for ack in self.model.acknowledged if ack[0] >= self.model.released]
        about = self.store.inspect()
        queued = {(q.step, q.agents, q.worker is None) for q in (*about.ready, *about.claimed)}
        assert queued == {
            (cluster.step, cluster.agents, cluster.holder is None)
            for cluster in self.model.queue.values()
        }
        assert about.counts.get("commits", 0) == len(self.model.acknowledged)
        assert list(about.steps) == self.model.steps


def test_interleavings(server: Server) -> None:
    machine = type("Here", (Interleavings,), {"server": server})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=30, stateful_step_count=40, deadline=None)
    )


def test_two_do_not_go_on_where_one_of_them_could(server: Server) -> None:
    machine = type("Here", (Interleavings,), {"server": server})()
    machine.dispatch(agents=(0,), more=1)
    machine.dispatch(agents=(0, 1), more=0)
    machine.claim(worker="u", expires=False)
    machine.commit(which=0, continues=True)
    machine.stands_as_it_should()
    machine.teardown()


def test_who_is_at_the_end_of_a_lookahead_does_not_go_on(server: Server) -> None:
    machine = type("Here", (Interleavings,), {"server": server})()
    machine.dispatch(agents=(0,), more=1)
    machine.claim(worker="u", expires=False)
    for _ in range(2):
        machine.commit(which=-1, continues=True)
        machine.stands_as_it_should()
    machine.teardown()
