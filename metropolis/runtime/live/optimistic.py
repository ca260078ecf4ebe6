"""The worker of an optimistic run; see `metropolis.speculation`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any

from metropolis.controller.native import native_controller
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.client import Client
from metropolis.llm.usage import FREE
from metropolis.rules.rules import Rule
from metropolis.runtime.live.configuration import RunConfiguration
from metropolis.runtime.live.setup import bodies
from metropolis.runtime.live.stored import StoredRun
from metropolis.runtime.live.worker_pool import make_decisions
from metropolis.speculation.native import NativeSpeculation
from metropolis.store.execution import Execution
from metropolis.store.memory import MemoryStore
from metropolis.types import MetropolisError, Step
from metropolis.workers.event_loop import to_its_end
from metropolis.workers.leases import Heartbeat, retry
from metropolis.workers.local import LocalWorker
from metropolis.workers.optimistic.ahead_limit import AHEAD_MAX
from metropolis.workers.optimistic.call_gate import CallGate
from metropolis.workers.optimistic.commits import Commits, SharedCommits
from metropolis.workers.optimistic.executions import Observer
from metropolis.workers.optimistic.joining_client import JoiningClient
from metropolis.workers.optimistic.kept_answers import KeptAnswers
from metropolis.workers.optimistic.minds import Mind, Minds
from metropolis.workers.optimistic.stored_commits import StoredCommits
from metropolis.workers.optimistic.worker import OptimisticWorker
from metropolis.workers.optimistic.world_states import WorldStates
from metropolis.workers.response_cache import StoredAnswers
from metropolis.workers.worker_spec import WorkerSpec
from metropolis.world.entities import Entity

WASTE_BUDGET = 0.2
"""The default budget where calls cost nothing but time."""


def waste_budget_of(configured: float | None, client: Client) -> float:
    """The share of calls that may be wasted: as `configured`, by default what suits `client`."""
    if configured is not None:
        return configured
    return WASTE_BUDGET if _costs_nothing(client) else 0.0


def _costs_nothing(client: Client) -> bool:
    """Whether calls cost time only: no money, budget, limit per minute or server elsewhere."""
    backend = client.backend
    is_external = isinstance(backend, Compatible) and backend.is_external
    return client.prices is FREE and not client.gate.is_limited and not is_external


class OptimisticWorkerPool:
    """One worker, whose agents run ahead; a `metropolis.runtime.live.worker_pool.WorkerPool`."""

    def __init__(
        self,
        worker: LocalWorker,
        stored: StoredRun,
        spec: WorkerSpec,
        minds: Minds,
        rule: Rule,
        last_step: Step,
        configuration: RunConfiguration,
        observer: Observer | None,
    ) -> None:
        """`spec` is that of a worker that does not run ahead; `minds` are its agents'."""
        self._local, self._store, self.shared = worker, stored.store, stored.shared
        self._spec, self._minds = spec, minds
        self._world, self._agents, self._client = spec.world, spec.agents, spec.client
        self._rule, self._last_step, self._observer = rule, last_step, observer
        self._deciders = configuration.workers, configuration.ray_address
        self._waste_budget = waste_budget_of(configuration.waste_budget, spec.client)
        self._commits: StoredCommits | None = None
        self._gate: CallGate | None = None

    @property
    def wasted_calls(self) -> int:
        """Calls of final steps that were sent in vain."""
        return 0 if self._gate is None else self._gate.wasted_calls

    def start(self) -> Sequence[Coroutine[Any, Any, None]]:
        """See WorkerPool."""
        if self.shared and isinstance(self._store, MemoryStore):
            return [self._run_shared(self._store)]
        return [self._run_stored()]

    def recorded(self, record: Callable[[Execution], None]) -> Callable[[Execution], None]:
        """`record`, after the check that this worker has committed the execution."""

        def check(execution: Execution) -> None:
            if self._commits is not None:
                self._commits.acknowledge(execution)
            record(execution)

        return check

    def close(self) -> None:
        """See WorkerPool."""

    async def _run_shared(self, store: MemoryStore) -> None:
        commits = SharedCommits(store, self._minds.committed)
        worker = self._worker(max(store.nodes().steps), commits)
        try:
            await worker.run()
        finally:
            await to_its_end(worker.end())
            commits.end()

    async def _run_stored(self) -> None:
        answers = self._client.journal
        assert isinstance(answers, StoredAnswers)
        steps = retry(self._store.nodes).steps
        first = max(steps)
        if min(steps) < first:
            await self._catch_up(first)
        if first == self._last_step:
            return
        name, agents = uuid.uuid4().hex, len(self._agents)
        commits = StoredCommits(name, self._store, answers, self._spec.lease_s, first, agents)
        self._commits = commits
        with Heartbeat(self._spec.lease_s, commits.renew):
            try:
                for agent, saved in (await commits.begin()).items():
                    self._minds.final[agent] = Mind(None, saved)
                worker = self._worker(first, commits)
                try:
                    await worker.run()
                finally:
                    await to_its_end(worker.end())
            finally:
                await to_its_end(commits.end())

    async def _catch_up(self, first: Step) -> None:
        """Run all agents up to step `first` without running ahead."""
        until = None if first == self._last_step else first
        await self._spec.worker(uuid.uuid4().hex, self._store, until=until).run()

    def _worker(self, first: Step, commits: Commits) -> OptimisticWorker:
        """The worker of a run whose agents are at step `first`."""
        radius = self._world.perception_radius
        if radius == inf:
            raise MetropolisError(
                "the world's perception_radius is infinite, so no agent can run ahead of others; "
                "use the mode lockstep, or a radius"
            )
        entities, events = retry(self._store.world, first)
        states = WorldStates(self._world, entities, events, first)
        names = [agent.name for agent in self._agents]
        speculation = self._speculation(states, entities, names)
        # A claim contains only the answers of its step.
        bought = retry(self._store.answers, range(first, first + AHEAD_MAX + 1))
        answers = KeptAnswers(self._client.journal, bought)
        self._gate = CallGate(
            speculation, states.predicted, names, radius, self._waste_budget, self._waiting_max()
        )
        client = JoiningClient(self._client, answers, self._gate, self._local.clock)
        self._local.client = client
        decisions = make_decisions(*self._deciders, self._spec, self._local, self._minds)
        return OptimisticWorker(
            self._local,
            commits,
            names,
            speculation,
            self._minds,
            decisions,
            states,
            client,
            self._observer,
        )

    def _speculation(
        self, states: WorldStates, entities: Sequence[Entity], names: Sequence[str]
    ) -> NativeSpeculation:
        """The speculation of all steps from the first of `states` on."""
        world, steps = self._world, self._last_step - states.first_step
        positions = bodies(entities, names)
        velocity = world.reach.rounded_velocity
        return NativeSpeculation(
            native_controller(self._rule, world.metric, velocity, positions, steps),
            world.metric,
            world.reach.cluster_radius,
            names,
            {entity.name: states.digests.value(entity) for entity in entities},
            [mind.digest for mind in self._minds.final],
            steps,
            perception_radius=world.perception_radius,
        )

    def _waiting_max(self) -> float:
        """How many executions may wait at the gate.

        Also with a thread for each agent, one must be left to needed steps: an agent may get many
        questions at once, or one while its next step already waits.
        """
        if not self._local.uses_threads:
            return inf
        threads = self._local.threads_max
        return threads - 1 if threads >= len(self._agents) else threads // 2
