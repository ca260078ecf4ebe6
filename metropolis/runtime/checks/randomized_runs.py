"""Runs of a world under random schedules, for `check_world`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
from msgspec.structs import replace

from metropolis.controller.native import NativeController
from metropolis.llm.agent import LLM
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, Request
from metropolis.llm.client import Client
from metropolis.rules.rules import Rule
from metropolis.runtime.folder.calls_file import CallsFile
from metropolis.runtime.folder.comparison import first_difference
from metropolis.runtime.folder.history import HistoryWriter
from metropolis.runtime.live.executor import Executor
from metropolis.runtime.live.recorder import Recorder
from metropolis.runtime.live.setup import initial_entities
from metropolis.runtime.live.single_use import mark_used
from metropolis.runtime.live.stored import Start, begin_run
from metropolis.runtime.live.worker_pool import SharedWorkerPool
from metropolis.store.base import Nodes
from metropolis.store.execution import Execution
from metropolis.store.memory import MemoryServer
from metropolis.types import Dispatch, Step
from metropolis.workers.event_loop import cancel_all, complete
from metropolis.workers.invocations import ended_by_first_ctrl_c
from metropolis.workers.local import LocalWorker
from metropolis.workers.watchdog import STALL_S, Watchdog
from metropolis.world.base import Agent, World
from metropolis.world.entities import AGENT, Entity
from metropolis.world.record import StepRecord
from metropolis.world.saved_check import SavedWhenRead
from metropolis.world.scenario import Scenario
from metropolis.world.state import State

PAUSES = (0, 0, 0, 1, 2, 5, 20, 80)
"""Iterations of the event loop to wait: mostly few, sometimes very many."""


class TrialWorker(LocalWorker):
    """Delays clusters and their members, and reorders them, at random.

    Calls `on_call` before (True) and after (False) every call of an agent's code.
    """

    pauses: Random | None = None
    orders: Random | None = None
    on_call: Callable[[bool, str, str], None] | None = None

    begins_at_once = False

    async def run(self, dispatch: Dispatch, state: State, attempt: int = 0) -> Execution:
        """See `LocalWorker.run`."""
        agents = list(dispatch.agents)
        if self.orders is not None:
            self.orders.shuffle(agents)
        await self._pause()
        execution = await super().run(Dispatch(dispatch.step, tuple(agents)), state, attempt)
        await self._pause()
        return replace(execution, agents=dispatch.agents)

    async def _call(self, method: Callable[[Any, Any], Any], argument: Any, llm: LLM) -> Any:
        await self._pause()
        agent: Agent = method.__self__  # type: ignore[attr-defined]
        self._report(True, method.__qualname__, agent.name)
        answer = await super()._call(method, argument, llm)
        self._report(False, method.__qualname__, agent.name)
        await self._pause()
        return answer

    def _routine(self, agent: Agent, observation: Any) -> Any:
        self._report(True, agent.routine.__qualname__, agent.name)
        action = super()._routine(agent, observation)
        self._report(False, agent.routine.__qualname__, agent.name)
        return action

    def _report(self, before: bool, code: str, agent: str) -> None:
        if self.on_call is not None:
            self.on_call(before, code, agent)

    async def _pause(self) -> None:
        await _pause(self.pauses)


class TrialAuthor(Scripted):
    """Delays answers at random, so that they arrive in another order."""

    pauses: Random | None = None

    async def complete(self, request: Request) -> Completion:
        """See `Scripted.complete`."""
        await _pause(self.pauses)
        return await super().complete(request)


async def _pause(pauses: Random | None) -> None:
    if pauses is not None:
        for _ in range(pauses.choice(PAUSES)):
            await asyncio.sleep(0)


class Trial:
    """One run of `scenario` from `beginning` up to a step."""

    def __init__(
        self,
        scenario: Scenario,
        beginning: Start,
        rule: Rule,
        seed: int,
        *,
        world: World | None = None,
        client: Client | None = None,
        one_by_one: bool = False,
    ) -> None:
        """`world` replaces the scenario's, to watch it; `client` replaces its author."""
        self.scenario, self.beginning, self._rule, self._seed = scenario, beginning, rule, seed
        self._world = scenario.world if world is None else world
        self.store = MemoryServer(self._world.metric).store("trial")
        self.author = TrialAuthor(self._world.author)
        self._client = client or Client(self.author)  # needs no closing
        self.worker = TrialWorker(
            self._world,
            scenario.agents,
            self._client,
            seed,
            one_by_one=one_by_one,
        )
        self.worker.uses_routines = not one_by_one  # they should make no difference

    def run(self, steps: Step, on_commit: Callable[[Step], None] | None = None) -> list[StepRecord]:
        """The records of the steps below `steps`; `on_commit` receives each commit's step."""
        return list(self.records(steps, on_commit))

    def records(
        self, steps: Step, on_commit: Callable[[Step], None] | None = None
    ) -> Generator[StepRecord, None, None]:
        """Yield the same records, each once the floor has passed its step."""
        mark_used(self.scenario.agents)
        loop = asyncio.new_event_loop()
        self.scenario.world.seal()
        try:
            with Watchdog(self.worker.invocations, loop, STALL_S):
                yield from self._records(loop, steps, on_commit)
        finally:
            self.scenario.world.unseal()
            self.worker.close()
            loop.close()

    def _records(
        self,
        loop: asyncio.AbstractEventLoop,
        steps: Step,
        on_commit: Callable[[Step], None] | None,
    ) -> Iterator[StepRecord]:
        names, first = [agent.name for agent in self.scenario.agents], self.beginning.step
        places = {e.name: e.position for e in self.beginning.entities if e.kind == AGENT}
        positions = [places[name] for name in names]
        at = np.array(positions, np.float32).reshape(-1, 2)
        recorder = Recorder(names, at, first, HistoryWriter(), CallsFile())

        def commit(execution: Execution) -> None:
            recorder.commit(execution)
            if on_commit is not None:
                on_commit(execution.step)

        def controller_of(nodes: Nodes) -> NativeController:
            world = self._world
            return NativeController.of_rule(
                self._rule,
                world.metric,
                world.reach.rounded_velocity,
                nodes.positions,
                steps,
                steps=nodes.steps,
            )

        agents, beginning = self.scenario.agents, self.beginning
        minds = SavedWhenRead(agents)
        begin_run(self.store, self._world, agents, minds, self._seed, beginning, steps, {})
        worker_pool = SharedWorkerPool(self.worker, self.store)
        executor = Executor(
            controller_of,
            self.store,
            worker_pool,
            commit,
            last_step=steps,
            max_velocity=self._world.max_velocity,
        )

        def interrupt() -> None:
            loop.call_soon_threadsafe(executor.end, KeyboardInterrupt())

        try:
            complete(loop, executor.start(first))
            while executor.floor < steps and executor.failure is None:
                with ended_by_first_ctrl_c(interrupt):
                    self.worker.invocations.complete(loop, executor.advance())
                yield from recorder.advance(executor.floor)
                executor.collect()
            if executor.failure is not None:
                raise executor.failure
        finally:
            complete(loop, executor.stop())
            complete(loop, cancel_all())


class WatchedWorld(World):
    """Wraps `world`; calls `on_call` before and after its code, `on_observation` on results."""

    def __init__(
        self,
        world: World,
        on_call: Callable[[bool, str, str], None],
        on_observation: Callable[[Any, Step, str], None],
    ) -> None:
        self.watched, self._on_call, self._on_observation = world, on_call, on_observation
        for attribute in ("perception_radius", "max_velocity", "joint_radius"):
            setattr(self, attribute, getattr(world, attribute))
        if (space := getattr(world, "action_space", None)) is not None:
            self.action_space = space
        self.metric, self.name, self.author = world.metric, world.name, world.author

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        """See `World.reset`."""
        return self.watched.reset(seed=seed, options=options)

    def observe(self, view: Any) -> Any:
        """See `World.observe`."""
        code = f"{type(self.watched).__name__}.observe"
        self._on_call(True, code, view.name)
        observation = self.watched.observe(view)
        self._on_call(False, code, view.name)
        self._on_observation(observation, view.step, view.name)
        return observation

    async def resolve(self, cluster: Any) -> None:
        """See `World.resolve`."""
        code = f"{type(self.watched).__name__}.resolve"
        first = cluster.members[0].name
        self._on_call(True, code, first)
        resolving = self.watched.resolve(cluster)
        if isinstance(resolving, Awaitable):
            await resolving
        self._on_call(False, code, first)


def difference(expected: Sequence[StepRecord], found: Sequence[StepRecord]) -> str | None:
    """Describe the first difference of two histories; None: they are equal."""
    for left, right in zip(expected, found, strict=True):
        if (differing := first_difference(left, right)) is not None:
            return f"step {left.step}, {differing.what}"
    return None


def checked_start(scenario: Scenario, seed: int, options: Mapping[str, Any]) -> Start:
    """Step 0. Raises MetropolisError if it does not match the agents or the metric."""
    names = [agent.name for agent in scenario.agents]
    return Start(0, initial_entities(scenario.world, names, seed, options))
