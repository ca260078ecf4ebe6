"""The worker of an optimistic run; see `metropolis.speculation`."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from metropolis.controller.native import native_controller
from metropolis.llm.client import Client
from metropolis.llm.usage import FREE
from metropolis.rules.rules import Rule
from metropolis.runtime.live.setup import bodies
from metropolis.runtime.live.stored import Start
from metropolis.speculation.native import NativeSpeculation
from metropolis.store.memory import MemoryStore
from metropolis.types import Step
from metropolis.workers.local import LocalWorker
from metropolis.workers.optimistic.answers import JoiningClient, KeptAnswers
from metropolis.workers.optimistic.digests import Digests, mind_digest
from metropolis.workers.optimistic.minds import CommittedMinds, Minds
from metropolis.workers.optimistic.worker import OptimisticWorker
from metropolis.world.base import Agent, World
from metropolis.world.state import State

WASTE_BUDGET = 0.1
"""The default, where calls cost nothing but time."""


class OptimisticWorkerPool:
    """One worker, whose agents run ahead; a `metropolis.runtime.live.worker_pool.WorkerPool`."""

    shared = True

    def __init__(
        self,
        worker: LocalWorker,
        world: World,
        agents: Sequence[Agent],
        client: Client,
        rule: Rule,
        start: Start,
        last_step: Step,
        seed: int,
        waste_budget: float | None,
    ) -> None:
        """`waste_budget`: see `RunConfiguration`.

        Raises MetropolisError if an agent cannot be saved.
        """
        self._local, self._world, self._agents, self._client = worker, world, agents, client
        self._rule, self._start, self._last_step = rule, start, last_step
        self._waste_budget: float = waste_budget or 0.0
        if waste_budget is None:
            counts = client.prices is not FREE or client.gate.is_limited
            self._waste_budget = 0.0 if counts else WASTE_BUDGET
        self._minds = Minds(agents, seed)
        self.minds = CommittedMinds(self._minds.final)
        """The minds of the store."""

    def use(self, store: MemoryStore) -> None:
        """Commit to `store`."""
        world, start = self._world, self._start
        digests = Digests(start.step)
        entities = {one.name: one for one in start.entities}
        final, predicted = (
            State(world.metric, world.perception_radius, start.entities, start.step)
            for _ in range(2)
        )
        for state in (final, predicted):
            state.restore_events(start.events)
        names = [agent.name for agent in self._agents]
        steps = self._last_step - start.step
        positions = bodies(start.entities, names)
        speculation = NativeSpeculation(
            native_controller(self._rule, world.metric, world.max_velocity, positions, steps),
            world.metric,
            world.reach.cluster_radius,
            names,
            {name: digests.value(entity) for name, entity in entities.items()},
            [mind_digest(mind.saved or {}) for mind in self._minds.final],
            steps,
            perception_radius=world.perception_radius,
        )
        answers = KeptAnswers(self._client.journal)
        self._client.journal = answers
        self._local.client = client = JoiningClient(self._client)
        self._worker = OptimisticWorker(
            self._local,
            store,
            self._agents,
            speculation,
            self._minds,
            self.minds,
            final,
            predicted,
            client,
            answers,
            digests,
            self._waste_budget,
        )

    def start(self) -> Sequence[Coroutine[Any, Any, None]]:
        """See WorkerPool."""
        return [self._worker.run()]

    def close(self) -> None:
        """See WorkerPool."""
