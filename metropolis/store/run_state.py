"""The state of a run in the memory store, and its operations: counterparts of the Lua scripts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from math import inf
from typing import Any

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.store.base import Queued, RunInfo
from metropolis.store.claim import Lookahead, StateSnapshot, cluster_id
from metropolis.store.encoding import purchase
from metropolis.store.outcome import Outcome, PaidAnswers
from metropolis.types import AgentId, Dispatch, Position, Step
from metropolis.world.parts import Changes, Parts, applied, whole
from metropolis.world.state import State

Memo = dict[tuple[str, Key], Completion]
"""Buyer and key -> the answer."""

CANDIDATES = 32
"""Number of lowest clusters among which to choose; as in claim.lua."""


@dataclass(slots=True)
class Lease:
    """A claim of a cluster."""

    number: int
    worker: str
    until_s: float


@dataclass
class Contents:
    """A run; redis.py's key schema documents the fields. Values are objects, not JSON."""

    info: RunInfo
    state: State
    positions: dict[AgentId, Position]
    minds: dict[AgentId, Parts]
    living: Mapping[AgentId, Any] | None
    """Of a run whose workers share this state: the minds, saved when looked up; `minds` is empty"""
    steps: dict[AgentId, Step]
    released: Step
    floor: Step
    newest: Step
    homes: dict[AgentId, tuple[int, str]] = field(default_factory=dict)
    ahead: dict[AgentId, Lookahead] = field(default_factory=dict)
    busy: dict[AgentId, str] = field(default_factory=dict)
    blocked: dict[AgentId, AgentId] = field(default_factory=dict)
    clusters: dict[str, Dispatch] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    leases: dict[str, Lease] = field(default_factory=dict)
    expires_s: float = inf
    """No lease ends before."""
    memo: dict[AgentId, Memo] = field(default_factory=lambda: defaultdict(dict))
    bought: Counter[str] = field(default_factory=Counter)
    acks: dict[int, tuple[Outcome, bool]] = field(default_factory=dict)
    acknowledged: int = 0
    kept_step: Step | None = None
    kept: dict[AgentId, Any] = field(default_factory=dict)
    claimed: int = 0
    fence: int = 0
    holder: str | None = None
    until_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def dispatch(self, clusters: Sequence[Dispatch]) -> None:
        """Queue the clusters that are neither dispatched nor committed yet."""
        for cluster in self._fresh(clusters):
            name = cluster_id(cluster)
            for old in {self.busy.get(agent) for agent in cluster.agents} | {name}:
                if old is not None:
                    self.withdraw(old)
            self.clusters[name] = cluster
            self.busy |= dict.fromkeys(cluster.agents, name)
            self.ready.add(name)
            self.counts["dispatched"] += 1

    def _fresh(self, clusters: Sequence[Dispatch]) -> list[Dispatch]:
        found = []
        for cluster in clusters:
            steps = [self.steps[agent] for agent in cluster.agents]
            if min(steps) > cluster.step or self.clusters.get(cluster_id(cluster)) == cluster:
                continue
            if set(steps) != {cluster.step}:
                raise ValueError(f"{cluster} was dispatched, and its agents are at {steps}")
            found.append(cluster)
        return found

    def withdraw(self, name: str) -> None:
        """Remove a cluster from the queues."""
        cluster = self.clusters.pop(name, None)
        self.ready.discard(name)
        claimed = self.leases.pop(name, None) is not None
        for agent in cluster.agents if cluster else ():
            del self.busy[agent]
            if claimed:
                self.homes.pop(agent, None)

    def unclaim(self, name: str) -> None:
        """Make a claimed cluster ready again; its worker may have changed the minds."""
        del self.leases[name]
        self.homes.pop(self.clusters[name].agents[0], None)
        self.ready.add(name)

    def expire(self, now_s: float) -> None:
        """Make the clusters of expired claims ready again."""
        if now_s < self.expires_s:
            return
        for name in [name for name, lease in self.leases.items() if lease.until_s <= now_s]:
            self.unclaim(name)
            self.counts["expired"] += 1
        self.expires_s = min((lease.until_s for lease in self.leases.values()), default=inf)

    def chosen(self, worker: str, affinity: Step, most: int, own: bool) -> list[str]:
        """At most `most` clusters for `worker`."""

        def is_foreign(name: str) -> bool:
            _, home = self.homes.get(self.clusters[name].agents[0], (0, None))
            return home != worker

        def cost(name: str) -> tuple[Step, bool, Step, str]:
            step, foreign = self.clusters[name].step, is_foreign(name)
            return step + affinity * foreign, foreign, step, name

        if own:
            lowest = [
                name
                for name in self.ready
                if self.clusters[name].agents[0] not in self.homes or not is_foreign(name)
            ]
        else:
            lowest = nsmallest(
                max(CANDIDATES, most), self.ready, lambda name: (self.clusters[name].step, name)
            )
        return nsmallest(most, lowest, cost)

    def take(self, names: Sequence[str], worker: str, until_s: float) -> int:
        """Create leases of ready clusters; return their number."""
        self.claimed += 1
        self.counts["claims"] += len(names)
        for name in names:
            self.ready.remove(name)
            self.lease(name, Lease(self.claimed, worker, until_s))
        return self.claimed

    def lease(self, name: str, lease: Lease) -> None:
        """Give a cluster to a worker."""
        self.leases[name] = lease
        self.expires_s = min(self.expires_s, lease.until_s)

    def holds(self, name: str, number: int) -> bool:
        """Whether claim `number` still holds the cluster."""
        lease = self.leases.get(name)
        return lease is not None and lease.number == number

    def write(
        self,
        name: str,
        number: int,
        worker: str,
        outcome: Outcome,
        minds: Mapping[AgentId, Changes],
        lease_until_s: float | None,
    ) -> None:
        """Apply a commit; a worker that continues holds the next step until `lease_until_s`."""
        step, agents = outcome.step, outcome.agents
        self.withdraw(name)
        self.state.commit(step, outcome.writes, outcome.events)
        for agent in agents:
            self.steps[agent] = step + 1
            body = outcome.writes.get(self.info.agents[agent])
            if body is not None:
                self.positions[agent] = body.position
            self.memo.pop(agent, None)
            if self.living is None:
                self.minds[agent] = applied(self.minds[agent], minds[agent])
        if step + 1 == self.kept_step:
            self.kept |= self.whole_minds(agents)
        continues = len(agents) == 1 and self.clear_until(agents[0]) > step + 1
        if continues or lease_until_s is None:  # otherwise it changes the mind by mistake
            self.homes |= dict.fromkeys(agents, (number, worker))
        self.acknowledged += 1
        self.acks[self.acknowledged] = outcome, continues
        self.newest = max(self.newest, step + 1)
        self.counts["commits"] += 1
        self.counts["agent_steps"] += len(agents)
        if continues:
            following = Dispatch(step + 1, agents)
            self.dispatch([following])
            self.counts["ahead"] += 1
            if lease_until_s is not None:
                self.ready.remove(cluster_id(following))
                self.lease(cluster_id(following), Lease(number, worker, lease_until_s))
                self.counts["claims"] += 1

    def whole_minds(self, agents: Iterable[AgentId]) -> dict[AgentId, Any]:
        """The minds of `agents` as of their last commit."""
        if self.living is not None:
            return {agent: self.living[agent] for agent in agents}
        return {agent: whole(self.minds[agent]) for agent in agents}

    def buy(self, answers: PaidAnswers, buyer: str) -> None:
        """Add answers to the purchases of `buyer`."""
        for key, completion in answers.items():
            self.bought.update(purchase(buyer, key, completion))

    def snapshot(self, cluster: Dispatch, until: Step) -> StateSnapshot:
        """What the members may read, up to the step below `until` if they continue alone."""
        step, radius = cluster.step, inf if self.info.radius is None else self.info.radius
        if until > step + 1:
            ahead = self.ahead[cluster.agents[0]]
            last = min(until - 1, self.newest)
            return StateSnapshot.of(self.state, [(ahead.position, radius + ahead.far)], step, last)
        areas = [(self.positions[agent], radius) for agent in cluster.agents]
        return StateSnapshot.of(self.state, areas, step, step)

    def clear_until(self, agent: AgentId) -> Step:
        """The step up to which the agent can continue alone; 0: none is known."""
        return self.ahead[agent].until if agent in self.ahead else 0

    def release(self, below: Step) -> None:
        """Drop data that only steps below `below` need."""
        if below > self.released:
            self.state.collect(below)
            self.acks = {n: ack for n, ack in self.acks.items() if ack[0].step >= below}
            self.released = below

    def queues(self, now_s: float) -> tuple[list[Queued], list[Queued]]:
        """The ready and the claimed clusters, the lowest step first."""
        ready = [
            Queued(self.clusters[name].step, self.clusters[name].agents) for name in self.ready
        ]
        claimed = []
        for name, lease in self.leases.items():
            cluster = self.clusters[name]
            left_s = max(0.0, lease.until_s - now_s)
            claimed.append(Queued(cluster.step, cluster.agents, lease.worker, left_s))
        return sorted(ready, key=by_step), sorted(claimed, key=by_step)

    def size_bytes(self) -> int:
        """Approximate size of the stored values: the lengths of their texts."""
        world = self.state.around([((0.0, 0.0), inf)], self.released, self.newest)
        kept = world, self.minds, self.kept, self.acks, self.memo
        return sum(len(repr(value)) for value in kept)


def by_step(queued: Queued) -> tuple[Step, tuple[AgentId, ...]]:
    """Sort key: lowest step first."""
    return queued.step, queued.agents
