"""The state of a run in the memory store, and its operations: counterparts of the Lua scripts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from math import inf
from typing import Any

import msgspec

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.rules.metrics import CHEBYSHEV, Hops, Metric
from metropolis.store.base import Acknowledged, Inspection, Queued, RunInfo
from metropolis.store.claim import Claim, Lookahead, StateSnapshot, cluster_id
from metropolis.store.encoding import first_positions, minds_in_parts, purchase
from metropolis.store.execution import NO_ANSWERS, Execution, PaidAnswers
from metropolis.types import AgentId, Dispatch, Position, Step
from metropolis.world.entities import Entity, Event
from metropolis.world.parts import Parts, apply_changes, from_parts
from metropolis.world.state import State

Memo = dict[tuple[str, Key], Completion]
"""Buyer and key -> the answer."""

CANDIDATES = 32
"""Number of lowest clusters among which to choose; as in claim.lua."""


@dataclass(slots=True)
class ReplacedState:
    """The data of one agent that its commit has replaced, for a retraction."""

    number: int
    """The number of the commit's acknowledgement."""
    position: Position
    mind: Parts


class Lease(msgspec.Struct, gc=False):
    """A claim of a cluster."""

    number: int
    worker: str
    until_s: float


@dataclass
class RunState:
    """A run; redis.py's key schema documents the fields. Values are objects, not JSON."""

    info: RunInfo
    state: State
    positions: dict[AgentId, Position]
    minds: dict[AgentId, Parts]
    shared_minds: Mapping[AgentId, Any] | None
    """The minds, saved when looked up, if workers share this data; then `minds` is empty."""
    shared_snapshot: StateSnapshot
    """A snapshot that reads `state` itself, for workers in this process."""
    steps: dict[AgentId, Step]
    released: Step
    floor: Step
    newest: Step
    homes: dict[AgentId, tuple[int, str | None]] = field(default_factory=dict)
    """The claim of the last commit, and the worker whose copy of the mind is valid."""
    ahead: dict[AgentId, Lookahead] = field(default_factory=dict)
    busy: dict[AgentId, str] = field(default_factory=dict)
    blocked: dict[AgentId, AgentId] = field(default_factory=dict)
    clusters: dict[str, Dispatch] = field(default_factory=dict)
    ready: dict[str, None] = field(default_factory=dict)
    """The ready clusters, in the order of arrival."""
    leases: dict[str, Lease] = field(default_factory=dict)
    expires_s: float = inf
    """No lease expires before this time."""
    memo: dict[Step, dict[AgentId, Memo]] = field(default_factory=lambda: defaultdict(dict))
    before: dict[Step, dict[AgentId, ReplacedState]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    bought: Counter[str] = field(default_factory=Counter)
    acks: dict[int, Acknowledged] = field(default_factory=dict)
    acks_of: dict[Step, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The numbers of `acks` by step."""
    acknowledged: int = 0
    kept_step: Step | None = None
    kept: dict[AgentId, Any] = field(default_factory=dict)
    claimed: int = 0
    fence: int = 0
    holder: str | None = None
    until_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    watches: dict[str, list[Callable[[], None]]] = field(default_factory=lambda: defaultdict(list))
    """Kind of change -> callbacks."""

    def dispatch(self, clusters: Sequence[Dispatch]) -> None:
        """Queue the clusters that are neither dispatched nor committed yet."""
        for name, cluster in self._undispatched(clusters):
            if name in self.clusters:
                self.withdraw(name)
            for agent in cluster.agents:
                if agent in self.busy:
                    self.withdraw(self.busy[agent])
            self.clusters[name] = cluster
            for agent in cluster.agents:
                self.busy[agent] = name
            self.ready[name] = None
            self.counts["dispatched"] += 1

    def _undispatched(self, clusters: Sequence[Dispatch]) -> list[tuple[str, Dispatch]]:
        found = []
        for cluster in clusters:
            name, step = cluster_id(cluster), cluster.step
            at = {self.steps[agent] for agent in cluster.agents}
            if at == {step}:
                if self.clusters.get(name) != cluster:
                    found.append((name, cluster))
            elif min(at) <= step:
                raise ValueError(f"{cluster} was dispatched, and its agents are at {sorted(at)}")
        return found

    def withdraw(self, name: str) -> None:
        """Remove a cluster from the queues."""
        cluster = self.clusters.pop(name, None)
        self.ready.pop(name, None)
        claimed = self.leases.pop(name, None) is not None
        if cluster is None:
            return
        for agent in cluster.agents:
            del self.busy[agent]
            if claimed:
                self.homes.pop(agent, None)

    def unclaim(self, name: str) -> None:
        """Make a claimed cluster ready again; its worker may have changed the minds."""
        del self.leases[name]
        self.homes.pop(self.clusters[name].agents[0], None)
        self.ready[name] = None

    def expire(self, now_s: float) -> None:
        """Make the clusters of expired claims ready again."""
        if now_s < self.expires_s:
            return
        for name in [name for name, lease in self.leases.items() if lease.until_s <= now_s]:
            self.unclaim(name)
            self.counts["expired"] += 1
        self.expires_s = min((lease.until_s for lease in self.leases.values()), default=inf)

    def chosen(self, worker: str, affinity: Step, most: int, own: bool) -> list[str]:
        """Choose at most `most` ready clusters for `worker`; return their names."""
        if most >= len(self.ready) and not own:
            return sorted(self.ready, key=lambda name: self.clusters[name].step)

        def last_worker(name: str) -> str | None:
            return self.homes.get(self.clusters[name].agents[0], (0, None))[1]

        def cost(name: str) -> tuple[Step, bool, Step, str]:
            step, foreign = self.clusters[name].step, last_worker(name) != worker
            return step + affinity if foreign else step, foreign, step, name

        if own:
            lowest = [name for name in self.ready if last_worker(name) in (None, worker)]
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
            del self.ready[name]
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
        execution: Execution,
        lease_until_s: float | None,
    ) -> bool:
        """Apply a commit; a worker that continues holds the next step until `lease_until_s`.

        Returns whether the next step is dispatched.
        """
        step, agents = execution.step, execution.agents
        # A worker whose claim has expired may have claimed the cluster again, and changed its copy;
        # so may one that continues such a claim.
        is_late = not self.holds(name, number) or self.homes.get(agents[0]) == (number, None)
        home = None if is_late else worker
        self.withdraw(name)
        self.state.commit(step, execution.writes, execution.events)
        self.acknowledged += 1
        for agent in agents:
            self.steps[agent] = step + 1
            if self.info.retractable:
                before = ReplacedState(self.acknowledged, self.positions[agent], self.minds[agent])
                self.before[step][agent] = before
        if execution.writes:
            for agent in agents:
                body = execution.writes.get(self.info.agents[agent])
                if body is not None:
                    self.positions[agent] = body.position
        continues = len(agents) == 1 and self.clear_until(agents[0]) > step + 1
        if self.shared_minds is None:
            for agent in agents:
                self.minds[agent] = apply_changes(self.minds[agent], execution.minds[agent])
            if continues or lease_until_s is None:  # otherwise its copy is a step ahead
                self.homes |= dict.fromkeys(agents, (number, home))
        if step + 1 == self.kept_step:
            self.kept |= self.current_minds(agents)
        self.acks[self.acknowledged] = Acknowledged(str(self.acknowledged), execution, continues)
        self.acks_of[step].append(self.acknowledged)
        if self.newest <= step:
            self.newest = step + 1
        self.counts["commits"] += 1
        self.counts["agent_steps"] += len(agents)
        if continues:
            cluster = Dispatch(step + 1, agents)
            following = cluster_id(cluster)
            self.dispatch([cluster])
            self.counts["ahead"] += 1
            if lease_until_s is not None:
                del self.ready[following]
                self.lease(following, Lease(number, worker, lease_until_s))
                self.counts["claims"] += 1
        return continues

    def current_minds(self, agents: Iterable[AgentId]) -> dict[AgentId, Any]:
        """The minds of `agents` as of their last commit; those that are shared, as JSON."""
        if self.shared_minds is not None:
            return {agent: _as_json(self.shared_minds[agent]) for agent in agents}
        return {agent: from_parts(self.minds[agent]) for agent in agents}

    def answers(self, cluster: Dispatch) -> PaidAnswers:
        """The answers kept for the members and their step."""
        memos = self.memo.get(cluster.step)
        if not memos:
            return NO_ANSWERS
        own = [memos.get(agent, {}) for agent in cluster.agents]
        return {key: answer for memo in own for (_, key), answer in memo.items()}

    def answers_of_steps(self, steps: Iterable[Step]) -> dict[Key, Completion]:
        """The answers kept for `steps`, of all agents."""
        memos = [memo for step in steps for memo in self.memo.get(step, {}).values()]
        return {key: answer for memo in memos for (_, key), answer in memo.items()}

    def keep_answer(self, key: Key, completion: Completion, buyer: str) -> bool:
        """Keep an answer; returns False if it is kept already."""
        if key.agent not in self.steps or key.step < self.released:
            return True
        memo = self.memo[key.step].setdefault(key.agent, {})
        if memo.get((buyer, key)) == completion:
            return False
        memo[buyer, key] = completion
        return True

    def buy(self, answers: PaidAnswers, buyer: str) -> None:
        """Add answers to the purchases of `buyer`."""
        for key, completion in answers.items():
            self.bought.update(purchase(buyer, key, completion))

    def minds_from_others(self, agents: Iterable[AgentId], worker: str) -> dict[AgentId, Parts]:
        """The minds of those `agents` whose last commit was not by `worker`."""
        homes = {agent: self.homes.get(agent) for agent in agents}
        moved = [agent for agent, home in homes.items() if home is None or home[1] != worker]
        return {agent: self.minds[agent] for agent in moved}

    def claim_of(self, name: str, worker: str, number: int) -> Claim:
        """The claim of a cluster that `worker` holds."""
        cluster = self.clusters[name]
        step, agents = cluster.step, cluster.agents
        if self.shared_minds is not None:
            answers = self.answers(cluster)
            return Claim(name, number, worker, step, agents, self.shared_snapshot, {}, answers)
        until = self.clear_until(agents[0]) if len(agents) == 1 else 0
        until = until if until > step + 1 else 0
        return Claim(
            name,
            number,
            worker,
            step,
            agents,
            self.snapshot(cluster, until),
            self.minds_from_others(agents, worker),
            self.answers(cluster),
            until,
        )

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
        ahead = self.ahead.get(agent)
        return 0 if ahead is None else ahead.until

    def collect(self, below: Step) -> None:
        """Drop data that only steps below `below` need."""
        if below > self.released:
            self.state.collect(below)
            for kept in (self.memo, self.before):
                for step in [step for step in kept if step < below]:
                    kept.pop(step)
            for step in range(self.released, below):
                for number in self.acks_of.pop(step, ()):
                    del self.acks[number]
            self.released = below

    def inspection(self, now_s: float) -> Inspection:
        """See Store.inspect."""
        ready = [
            Queued(self.clusters[name].step, self.clusters[name].agents) for name in self.ready
        ]
        claimed = []
        for name, lease in self.leases.items():
            cluster = self.clusters[name]
            left_s = max(0.0, lease.until_s - now_s)
            claimed.append(Queued(cluster.step, cluster.agents, lease.worker, left_s))
        left_s = max(0.0, self.until_s - now_s)
        return Inspection(
            self.info,
            self.floor,
            self.released,
            [self.steps[agent] for agent in sorted(self.steps)],
            dict(sorted(self.blocked.items())),
            sorted(ready),
            sorted(claimed),
            len(self.acks),
            self.size_bytes(),
            self.holder if left_s else None,
            left_s,
            dict(self.counts),
            ["the run is kept in memory only and ends with its process"],
        )

    def size_bytes(self) -> int:
        """Approximate size of the stored values: the lengths of their texts."""
        world = self.state.around([((0.0, 0.0), inf)], self.released, self.newest)
        kept = world, self.minds, self.kept, self.acks, self.memo
        return sum(len(repr(value)) for value in kept)


def first_state(
    info: RunInfo,
    entities: Sequence[Entity],
    minds: Mapping[AgentId, Any],
    events: Iterable[Event],
    shared: Metric | None,
) -> RunState:
    """A run that begins, see `Store.begin`; `shared`: the metric of `MemoryServer`."""
    first = info.first_step
    metric = shared or (CHEBYSHEV if info.graph is None else Hops(info.graph))
    state = State(metric, inf if info.radius is None else info.radius, entities, first)
    state.restore_events(events)
    positions = first_positions(info, entities, minds)
    steps = dict.fromkeys(positions, first)
    parts, shared_minds = ({}, minds) if shared else (minds_in_parts(info, minds), None)
    snapshot = StateSnapshot(first, (), (), shared_state=state)
    data = state, positions, parts, shared_minds, snapshot, steps
    return RunState(info, *data, first, first, first)


def _as_json(mind: Any) -> msgspec.Raw:
    """A mind as JSON, which takes a fraction of the memory of plain data."""
    return mind if isinstance(mind, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(mind))
