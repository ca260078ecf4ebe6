"""The state of a run in the memory store, and its operations: counterparts of the Lua scripts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import nsmallest

from metropolis.store.base import Queued
from metropolis.store.cells import Cells
from metropolis.store.claim import Lookahead, cluster_id
from metropolis.store.encoding import Node, Written
from metropolis.store.versions import Versions
from metropolis.types import AgentId, Dispatch, Step
from metropolis.world.parts import applied

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
    """A run; redis.py's key schema documents the fields."""

    info: bytes
    cells: Cells
    nodes: dict[AgentId, Node]
    minds: dict[AgentId, dict[str, bytes]]
    steps: dict[AgentId, Step]
    released: Step
    floor: Step
    newest: Step
    versions: Versions = field(default_factory=Versions)
    homes: dict[AgentId, tuple[int, str]] = field(default_factory=dict)
    ahead: dict[AgentId, Lookahead] = field(default_factory=dict)
    busy: dict[AgentId, str] = field(default_factory=dict)
    blocked: dict[AgentId, AgentId] = field(default_factory=dict)
    clusters: dict[str, Dispatch] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    leases: dict[str, Lease] = field(default_factory=dict)
    memo: dict[AgentId, dict[bytes, bytes]] = field(default_factory=lambda: defaultdict(dict))
    bought: Counter[str] = field(default_factory=Counter)
    acks: dict[int, tuple[Step, bytes, bool]] = field(default_factory=dict)
    acknowledged: int = 0
    kept_step: Step | None = None
    kept: dict[AgentId, dict[str, bytes]] = field(default_factory=dict)
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
        for name in [name for name, lease in self.leases.items() if lease.until_s <= now_s]:
            self.unclaim(name)
            self.counts["expired"] += 1

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
        for name in names:
            self.ready.remove(name)
            self.counts["claims"] += 1
            self.leases[name] = Lease(self.claimed, worker, until_s)
        return self.claimed

    def holds(self, name: str, number: int) -> bool:
        """Whether claim `number` still holds the cluster."""
        lease = self.leases.get(name)
        return lease is not None and lease.number == number

    def write(
        self, name: str, number: int, worker: str, written: Written, lease_until_s: float | None
    ) -> None:
        """Apply a commit; a worker that continues holds the next step until `lease_until_s`."""
        step, agents = self.clusters[name].step, self.clusters[name].agents
        self.withdraw(name)
        for node in written.nodes:
            self.nodes[node.agent], self.steps[node.agent] = node, step + 1
            self.memo.pop(node.agent, None)
            self.minds[node.agent] = applied(self.minds[node.agent], node.mind)
            if step + 1 == self.kept_step:
                self.kept[node.agent] = self.minds[node.agent]
        continues = len(agents) == 1 and self.clear_until(agents[0]) > step + 1
        if continues or lease_until_s is None:  # otherwise it changes the mind by mistake
            self.homes |= dict.fromkeys(agents, (number, worker))
        self.versions.commit(step + 1, written.writes, written.events)
        self.acknowledged += 1
        self.acks[self.acknowledged] = step, written.acknowledgement, continues
        self.newest = max(self.newest, step + 1)
        self.counts["commits"] += 1
        self.counts["agent_steps"] += len(written.nodes)
        if continues:
            following = Dispatch(step + 1, agents)
            self.dispatch([following])
            self.counts["ahead"] += 1
            if lease_until_s is not None:
                self.ready.remove(cluster_id(following))
                self.leases[cluster_id(following)] = Lease(number, worker, lease_until_s)
                self.counts["claims"] += 1

    def clear_until(self, agent: AgentId) -> Step:
        """The step up to which the agent can continue alone; 0: none is known."""
        return self.ahead[agent].until if agent in self.ahead else 0

    def release(self, below: Step) -> None:
        """Drop data that only steps below `below` need."""
        if below > self.released:
            self.versions.release(self.released, below)
            self.acks = {number: ack for number, ack in self.acks.items() if ack[0] >= below}
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
        """Total size of the stored values."""
        kept = [node.place for node in self.nodes.values()]
        for minds in (self.minds, self.kept):
            kept += [body for mind in minds.values() for body in mind.values()]
        kept += [line for _, line, _ in self.acks.values()]
        kept += [answer for memo in self.memo.values() for answer in memo.values()]
        return sum(map(len, kept)) + self.versions.size_bytes()


def by_step(queued: Queued) -> tuple[Step, tuple[AgentId, ...]]:
    """Sort key: lowest step first."""
    return queued.step, queued.agents
