"""The store in this process's memory: with the same operations as the Redis store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import Condition, RLock
from typing import Any, TypeVar

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.llm.usage import Purchases
from metropolis.rules.metrics import Metric
from metropolis.store.async_memory_store import AsyncMemoryStore
from metropolis.store.base import (
    Acknowledged,
    AsyncStore,
    FencedOutError,
    Inspection,
    Nodes,
    RunInfo,
    Server,
    Store,
    StoreError,
)
from metropolis.store.claim import NO_LOOKAHEAD, Claim, Lookahead, cluster_id
from metropolis.store.encoding import (
    check_execution,
    check_minds,
    purchases_of,
)
from metropolis.store.execution import NO_ANSWERS, Execution, PaidAnswers
from metropolis.store.retraction import retract
from metropolis.store.run_state import RunState, first_state
from metropolis.types import AgentId, Dispatch, Step
from metropolis.world.entities import Entity, Event

T = TypeVar("T")


class MemoryServer(Server):
    """Runs that end with this process.

    With `metric`, that of the runs' world, workers share the data of a run: claims contain its
    state, and no minds, which are the mapping given to `begin`. All of its workers then run agents
    on one event loop. Without `metric` claims contain copies, as those of other stores.
    """

    def __init__(self, metric: Metric | None = None) -> None:
        self.metric = metric
        self.lock = RLock()
        """Guards all state."""
        self.changed = Condition(self.lock)
        """Notified when there may be new clusters or acknowledgements."""
        self.waiting_threads = 0
        """Threads that wait for `changed`."""
        self.run_states: dict[str, RunState] = {}

    def store(self, run: str) -> MemoryStore:
        """See Server."""
        return MemoryStore(self, run)

    def runs(self) -> list[str]:
        """See Server."""
        with self.lock:
            return sorted(self.run_states)

    def remove(self, run: str) -> None:
        """See Server."""
        with self.lock:
            run_state = self.run_states.get(run)
            if run_state is None:
                raise StoreError(f"there is no run {run!r} in memory")
            if run_state.until_s > time.monotonic():
                raise StoreError(f"the run {run!r} is held by {run_state.holder}; end it first")
            del self.run_states[run]

    def close(self) -> None:
        """See Server."""


class MemoryStore(Store):
    """See Store."""

    def __init__(self, server: MemoryServer, name: str) -> None:
        self._server, self._name = server, name
        self._lock, self._changed = server.lock, server.changed

    @property
    def _run(self) -> RunState:
        try:
            return self._server.run_states[self._name]
        except KeyError:
            raise StoreError(f"there is no run {self._name!r} in memory") from None

    def _fenced(self, fence: int) -> RunState:
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
        if self._server.metric is not None and info.retractable:
            raise StoreError("workers of a retractable run cannot share its data")
        run = first_state(info, list(entities), minds, events, self._server.metric)
        with self._lock:
            if self._name in self._server.run_states:
                raise StoreError(f"the run {self._name!r} exists; resume or remove it")
            self._server.run_states[self._name] = run

    def info(self) -> RunInfo:
        """See Store."""
        with self._lock:
            return self._run.info

    # --- the controller

    def take_lease(self, holder: str, ttl_s: float) -> int:
        """See Store."""
        with self._lock:
            run, now_s = self._run, time.monotonic()
            if run.until_s > now_s and run.holder != holder:
                raise StoreError(f"the run {self._name!r} is held by {run.holder}")
            run.fence += 1
            run.holder, run.until_s = holder, now_s + ttl_s
            return run.fence

    def renew_lease(self, fence: int, ttl_s: float) -> None:
        """See Store."""
        with self._lock:
            self._fenced(fence).until_s = time.monotonic() + ttl_s

    def release_lease(self, fence: int) -> None:
        """See Store."""
        with self._lock:
            run = self._fenced(fence)
            run.fence += 1
            run.until_s = 0.0

    def set_last_step(self, fence: int, last_step: Step) -> None:
        """See Store."""
        with self._lock:
            run = self._fenced(fence)
            run.info = replace(run.info, last_step=last_step)

    def dispatch(
        self,
        fence: int,
        clusters: Sequence[Dispatch],
        edges: Mapping[AgentId, AgentId | None],
        floor: Step,
        ahead: Mapping[AgentId, Lookahead] = NO_LOOKAHEAD,
    ) -> None:
        """See Store."""
        with self._lock:
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
            if clusters:
                self._notify(run, "ready")

    def acknowledgements(self, after: str, wait_s: float, most: int = 1000) -> list[Acknowledged]:
        """See Store."""
        last = int(after)
        with self._lock:
            if wait_s:
                self._server.waiting_threads += 1
                try:
                    self._changed.wait_for(lambda: self._run.acknowledged > last, wait_s)
                finally:
                    self._server.waiting_threads -= 1
            run = self._run
            if last > run.acknowledged:
                raise StoreError(f"the run {self._name!r} knows of no acknowledgement {after}")
            end = min(last + most, run.acknowledged)
            found = [run.acks.get(number) for number in range(last + 1, end + 1)]
        return [one for one in found if one is not None]

    def nodes(self) -> Nodes:
        """See Store."""
        with self._lock:
            run = self._run
            agents = sorted(run.steps)
            return Nodes(
                str(run.acknowledged),
                [run.steps[agent] for agent in agents],
                [run.positions[agent] for agent in agents],
                run.released,
            )

    def world(self, step: Step) -> tuple[list[Entity], list[Event]]:
        """See Store."""
        with self._lock:
            return self._run.state.at(step)

    def collect(self, fence: int, below: Step) -> None:
        """See Store."""
        with self._lock:
            self._fenced(fence).collect(below)

    def retract(self, fence: int, agent: AgentId, step: Step) -> None:
        """See Store."""
        with self._lock:
            retract(self._fenced(fence), agent, step)

    def keep_minds(self, fence: int, step: Step) -> bool:
        """See Store."""
        with self._lock:
            run = self._fenced(fence)
            run.kept = {}
            run.kept_step = step if step > run.newest else None
            return run.kept_step is not None

    def kept_minds(self) -> dict[AgentId, Any]:
        """See Store."""
        with self._lock:
            return dict(self._run.kept)

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
        with self._lock:
            while True:
                run, now_s = self._run, time.monotonic()
                run.expire(now_s)
                if run.ready and (names := run.chosen(worker, affinity, most, own)):
                    number = run.take(names, worker, now_s + lease_s)
                    claims = [run.claim_of(name, worker, number) for name in names]
                    for claim in claims:
                        for agent in claim.agents:
                            run.homes.pop(agent, None)
                    return claims
                if now_s >= deadline_s:
                    return []
                ends = [deadline_s, *(lease.until_s for lease in run.leases.values())]
                self._server.waiting_threads += 1
                try:
                    self._changed.wait(min(ends) - now_s)
                finally:
                    self._server.waiting_threads -= 1

    def minds(self, agents: Iterable[AgentId]) -> dict[AgentId, Any]:
        """See Store."""
        with self._lock:
            return self._run.current_minds(agents)

    def extend(self, claim: Claim, lease_s: float) -> bool:
        """See Store."""
        with self._lock:
            run = self._run
            if not run.holds(claim.id, claim.number):
                return False
            run.leases[claim.id].until_s = time.monotonic() + lease_s
            return True

    def give_back(self, claim: Claim) -> None:
        """See Store."""
        with self._lock:
            run = self._run
            if run.holds(claim.id, claim.number):
                run.unclaim(claim.id)
                run.counts["given_back"] += 1
                self._notify(run, "ready")

    def keep_answer(self, key: Key, completion: Completion, buyer: str = "") -> None:
        """See Store."""
        with self._lock:
            run = self._run
            if run.keep_answer(key, completion, buyer):
                run.counts["answers"] += 1
                run.buy({key: completion}, buyer)

    def answers(self, steps: Iterable[Step]) -> dict[Key, Completion]:
        """See Store."""
        with self._lock:
            return self._run.answers_of_steps(steps)

    def commit(
        self,
        claim: Claim,
        execution: Execution,
        answers: PaidAnswers = NO_ANSWERS,
        buyer: str = "",
        lease_s: float | None = None,
    ) -> Claim | bool:
        """See Store."""
        check_execution(claim, execution)
        with self._lock:
            run = self._run
            if run.shared_minds is None:
                check_minds(execution.minds, claim.agents)
            if not run.holds(claim.id, claim.number):
                if all(
                    run.homes.get(agent, (0,))[0] == claim.number and run.steps[agent] > claim.step
                    for agent in claim.agents
                ):
                    return True
                due = all(run.steps[agent] == claim.step for agent in claim.agents)
                same = run.clusters.get(claim.id) == Dispatch(claim.step, claim.agents)
                late = claim.id in run.ready and not run.info.retractable
                if not (due and late and same):
                    run.counts["refused"] += 1
                    return False
            until_s = None if lease_s is None else time.monotonic() + lease_s
            continues = run.write(claim.id, claim.number, claim.worker, execution, until_s)
            if answers:
                run.buy(answers, buyer)
            if run.info.retractable:
                for key, completion in answers.items():
                    run.keep_answer(key, completion, buyer)
            self._notify(run, "acknowledged")
            if not continues:
                return True
            if lease_s is None:
                self._notify(run, "ready")
            elif run.clear_until(claim.agents[0]) > claim.until:
                following = cluster_id(Dispatch(claim.step + 1, claim.agents))
                return run.claim_of(following, claim.worker, claim.number)
            return True

    # --- event loop

    def async_store(self) -> AsyncStore:
        """See Store."""
        return AsyncMemoryStore(self, self.watch, self.unwatch)

    def watch(
        self, what: str, wake: Callable[[], None], find: Callable[[], list[T]] = list
    ) -> list[T]:
        """What `find` finds; if nothing, call `wake` at changes of `what` until `unwatch`.

        `what` is "ready" or "acknowledged"; `wake` is called in the thread that makes the change.
        """
        with self._lock:
            found = find()
            if not found:
                self._run.watches[what].append(wake)
            return found

    def unwatch(self, what: str, wake: Callable[[], None]) -> None:
        """End a `watch`."""
        with self._lock:
            run = self._server.run_states.get(self._name)
            if run is not None:
                run.watches[what].remove(wake)

    def _notify(self, run: RunState, what: str) -> None:
        """Wake the waits for a change of `what`, see `watch`."""
        if self._server.waiting_threads:
            self._changed.notify_all()
        for wake in list(run.watches[what]):
            wake()

    # --- readers

    def bought(self) -> list[Purchases]:
        """See Store."""
        with self._lock:
            return purchases_of(self._run.bought)

    def inspect(self) -> Inspection:
        """See Store."""
        with self._lock:
            return self._run.inspection(time.monotonic())
