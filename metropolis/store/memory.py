"""The store in this process's memory: the twin of the Redis store, with the same operations."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from threading import Condition
from typing import Any

import msgspec

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.llm.usage import Purchases
from metropolis.store.base import (
    Acknowledged,
    FencedOutError,
    Inspection,
    Nodes,
    RunInfo,
    Server,
    Store,
    StoreError,
)
from metropolis.store.cells import Cells
from metropolis.store.claim import NOWHERE, Claim, Lookahead
from metropolis.store.encoding import (
    answers_of,
    bought_as,
    events_of,
    info_of,
    minds_of,
    position_of,
    purchase,
    purchases_of,
    slice_of,
    written_at_first,
    written_by,
)
from metropolis.store.outcome import NO_ANSWERS, Outcome, PaidAnswers, outcome_from_json
from metropolis.store.run_state import Contents
from metropolis.types import AgentId, Dispatch, Step
from metropolis.world.entities import Entity, Event
from metropolis.world.parts import Changes, applied


class MemoryServer(Server):
    """Runs that end with this process."""

    def __init__(self) -> None:
        self.changed = Condition()
        """Guards all state; notified when there may be new clusters or acknowledgements."""
        self.contents: dict[str, Contents] = {}

    def store(self, run: str) -> Store:
        """See Server."""
        return MemoryStore(self, run)

    def runs(self) -> list[str]:
        """See Server."""
        with self.changed:
            return sorted(self.contents)

    def remove(self, run: str) -> None:
        """See Server."""
        with self.changed:
            content = self.contents.get(run)
            if content is None:
                raise StoreError(f"there is no run {run!r} in memory")
            if content.until_s > time.monotonic():
                raise StoreError(f"the run {run!r} is held by {content.holder}; end it first")
            del self.contents[run]

    def close(self) -> None:
        """See Server."""


class MemoryStore(Store):
    """See Store."""

    def __init__(self, server: MemoryServer, name: str) -> None:
        self._server, self._name, self._changed = server, name, server.changed

    @property
    def _run(self) -> Contents:
        try:
            return self._server.contents[self._name]
        except KeyError:
            raise StoreError(f"there is no run {self._name!r} in memory") from None

    def _fenced(self, fence: int) -> Contents:
        run = self._run
        if run.fence != fence:
            raise FencedOutError(f"the run {self._name!r} was taken over by {run.holder}")
        return run

    # --- the run

    def begin(
        self,
        info: RunInfo,
        entities: Iterable[Entity],
        minds: Mapping[AgentId, Any],
        events: Iterable[Event] = (),
    ) -> None:
        """See Store."""
        cells, first = Cells(info), info.first_step
        written = written_at_first(cells, info, entities, minds, events)
        nodes = {node.agent: node for node in written.nodes}
        parts = {agent: applied({}, node.mind) for agent, node in nodes.items()}
        steps = dict.fromkeys(nodes, first)
        run = Contents(msgspec.json.encode(info), cells, nodes, parts, steps, first, first, first)
        run.versions.commit(first, written.writes, written.events)
        with self._changed:
            if self._name in self._server.contents:
                raise StoreError(f"the run {self._name!r} exists; resume or remove it")
            self._server.contents[self._name] = run

    def info(self) -> RunInfo:
        """See Store."""
        with self._changed:
            return info_of(self._run.info)

    # --- the controller

    def take_lease(self, holder: str, ttl_s: float) -> int:
        """See Store."""
        with self._changed:
            run, now_s = self._run, time.monotonic()
            if run.until_s > now_s and run.holder != holder:
                raise StoreError(f"the run {self._name!r} is held by {run.holder}")
            run.fence += 1
            run.holder, run.until_s = holder, now_s + ttl_s
            return run.fence

    def renew_lease(self, fence: int, ttl_s: float) -> None:
        """See Store."""
        with self._changed:
            self._fenced(fence).until_s = time.monotonic() + ttl_s

    def release_lease(self, fence: int) -> None:
        """See Store."""
        with self._changed:
            run = self._fenced(fence)
            run.fence += 1
            run.until_s = 0.0

    def dispatch(
        self,
        fence: int,
        clusters: Sequence[Dispatch],
        edges: Mapping[AgentId, AgentId | None],
        floor: Step,
        ahead: Mapping[AgentId, Lookahead] = NOWHERE,
    ) -> None:
        """See Store."""
        with self._changed:
            run = self._fenced(fence)
            run.dispatch(clusters)
            for agent, one in ahead.items():
                if one.until > run.clear_until(agent):
                    run.ahead[agent] = one
            for agent, blocker in edges.items():
                if blocker is None:
                    run.blocked.pop(agent, None)
                else:
                    run.blocked[agent] = blocker
            run.floor = floor
            self._changed.notify_all()

    def acknowledgements(self, after: str, wait_s: float, most: int = 1000) -> list[Acknowledged]:
        """See Store."""
        last = int(after)
        with self._changed:
            self._changed.wait_for(lambda: self._run.acknowledged > last, wait_s)
            run = self._run
            if last > run.acknowledged:
                raise StoreError(f"the run {self._name!r} knows of no acknowledgement {after}")
            found = [(number, *ack) for number, ack in run.acks.items() if number > last]
        return [
            Acknowledged(str(number), outcome_from_json(line), continues)
            for number, _, line, continues in found[:most]
        ]

    def nodes(self) -> Nodes:
        """See Store."""
        with self._changed:
            run = self._run
            places = [run.nodes[agent].place for agent in sorted(run.nodes)]
            steps = [run.steps[agent] for agent in sorted(run.nodes)]
            return Nodes(str(run.acknowledged), steps, [position_of(place) for place in places])

    def world(self, step: Step) -> tuple[list[Entity], list[Event]]:
        """See Store."""
        with self._changed:
            versions = self._run.versions
            seen, lines = versions.everything(step), versions.events(step, step)
        return [entity for _, entity in slice_of(step, seen, ()).versions], events_of(lines)

    def release(self, fence: int, below: Step) -> None:
        """See Store."""
        with self._changed:
            self._fenced(fence).release(below)

    def keep_minds(self, fence: int, step: Step) -> bool:
        """See Store."""
        with self._changed:
            run = self._fenced(fence)
            run.kept = {}
            run.kept_step = step if step > run.newest else None
            return run.kept_step is not None

    def kept_minds(self) -> dict[AgentId, Any]:
        """See Store."""
        with self._changed:
            kept = dict(self._run.kept)
        return minds_of(kept)

    # --- workers

    def claims(
        self,
        worker: str,
        lease_s: float,
        wait_s: float = 0.0,
        affinity: Step = 0,
        *,
        most: int = 1,
        own: bool = False,
    ) -> list[Claim]:
        """See Store."""
        deadline_s = time.monotonic() + wait_s
        with self._changed:
            while True:
                run, now_s = self._run, time.monotonic()
                run.expire(now_s)
                names = run.chosen(worker, affinity, most, own)
                if names:
                    number = run.take(names, worker, now_s + lease_s)
                    claims = [self._described(run, name, worker, number) for name in names]
                    for agent in (agent for claim in claims for agent in claim.agents):
                        run.homes.pop(agent, None)
                    return claims
                if now_s >= deadline_s:
                    return []
                ends = [deadline_s, *(lease.until_s for lease in run.leases.values())]
                self._changed.wait(min(ends) - now_s)

    def _described(self, run: Contents, name: str, worker: str, number: int) -> Claim:
        step, agents = run.clusters[name].step, run.clusters[name].agents
        until = run.clear_until(agents[0]) if len(agents) == 1 else 0
        last = max(step, until - 1)
        if until > step + 1:
            ahead = run.ahead[agents[0]]
            cells = run.cells.around(ahead.position, ahead.far)
        else:
            until = 0
            cells = sorted({c for agent in agents for c in run.nodes[agent].around.split(" ")})
        homes = {agent: run.homes.get(agent) for agent in agents}
        foreign = [agent for agent, home in homes.items() if home is None or home[1] != worker]
        return Claim(
            name,
            number,
            worker,
            step,
            agents,
            slice_of(
                step,
                run.versions.around(cells, step, last),
                run.versions.events(step, last, cells),
            ),
            {agent: run.minds[agent] for agent in foreign},
            dict(
                answers_of(answer for agent in agents for answer in run.memo.get(agent, {}).items())
            ),
            until,
        )

    def minds(self, agents: Iterable[AgentId]) -> dict[AgentId, Any]:
        """See Store."""
        with self._changed:
            minds = {agent: self._run.minds[agent] for agent in agents}
        return minds_of(minds)

    def extend(self, claim: Claim, lease_s: float) -> bool:
        """See Store."""
        with self._changed:
            run = self._run
            if not run.holds(claim.id, claim.number):
                return False
            run.leases[claim.id].until_s = time.monotonic() + lease_s
            return True

    def give_back(self, claim: Claim) -> None:
        """See Store."""
        with self._changed:
            run = self._run
            if run.holds(claim.id, claim.number):
                run.unclaim(claim.id)
                run.counts["given_back"] += 1
                self._changed.notify_all()

    def keep_answer(self, key: Key, completion: Completion, buyer: str = "") -> None:
        """See Store."""
        bought, encoded = bought_as(buyer, key), msgspec.json.encode(completion)
        with self._changed:
            run = self._run
            if run.steps.get(key.agent) == key.step:
                memo = run.memo[key.agent]
                if memo.get(bought) == encoded:
                    return
                memo[bought] = encoded
                run.counts["answers"] += 1
            run.bought.update(purchase(buyer, key, completion))

    def commit(
        self,
        claim: Claim,
        outcome: Outcome,
        minds: Mapping[AgentId, Changes],
        answers: PaidAnswers = NO_ANSWERS,
        buyer: str = "",
        lease_s: float | None = None,
    ) -> Claim | bool:
        """See Store."""
        with self._changed:
            info, cells = self.info(), self._run.cells
        written = written_by(cells, info, claim, outcome, minds)
        with self._changed:
            run = self._run
            mine = claim.number, claim.worker
            if all(
                run.homes.get(agent) == mine and run.steps[agent] > claim.step
                for agent in claim.agents
            ):
                return True
            cluster = Dispatch(claim.step, claim.agents)
            due = all(run.steps[agent] == claim.step for agent in claim.agents)
            held = run.holds(claim.id, claim.number) or claim.id in run.ready
            if not (due and held and run.clusters.get(claim.id) == cluster):
                run.counts["refused"] += 1
                return False
            until_s = None if lease_s is None else time.monotonic() + lease_s
            run.write(claim.id, claim.number, claim.worker, written, until_s)
            for key, completion in answers.items():
                run.bought.update(purchase(buyer, key, completion))
            self._changed.notify_all()
            following = claim.following(outcome).id
            continues = lease_s is not None and following in run.clusters
            if continues and run.clear_until(claim.agents[0]) > claim.until:
                return self._described(run, following, claim.worker, claim.number)
            return True

    # --- readers

    def bought(self) -> list[Purchases]:
        """See Store."""
        with self._changed:
            return purchases_of(self._run.bought)

    def inspect(self) -> Inspection:
        """See Store."""
        with self._changed:
            run, now_s = self._run, time.monotonic()
            ready, claimed = run.queues(now_s)
            return Inspection(
                self.info(),
                run.floor,
                run.released,
                [run.steps[agent] for agent in sorted(run.steps)],
                dict(sorted(run.blocked.items())),
                ready,
                claimed,
                len(run.acks),
                run.size_bytes(),
                run.holder,
                max(0.0, run.until_s - now_s),
                dict(run.counts),
                ["the run is kept in memory only and ends with its process"],
            )
