"""Runs clusters in this process: `async` agents on the event loop, plain ones in threads."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from threading import get_ident
from typing import Any

from metropolis.llm.agent import LLM, BlockingLLM, Sender
from metropolis.llm.call_log import CallLog, CallRecord, current_strand, follow_tasks, in_strand
from metropolis.store.execution import ClusterEffects, Execution
from metropolis.types import AgentId, Dispatch, MetropolisError, Position, Step
from metropolis.workers.event_loop import idles
from metropolis.workers.invocations import Invocation, Invocations
from metropolis.workers.threads import DaemonThreads
from metropolis.world.base import Agent, World
from metropolis.world.entities import Entity
from metropolis.world.parts import is_immutable
from metropolis.world.state import State
from metropolis.world.transaction import Transaction, split_into_clusters
from metropolis.world.view import Reach, Reads, View

THREADS_MAX = 1024


class LocalWorker:
    """Runs clusters of one world's agents.

    Requests go through `client`; `clock` gives their times, `virtual` says whether it is the clock
    of `VirtualInstances`, and `keep_text` whether to keep texts. With `one_by_one` the members of a
    cluster run sequentially.
    """

    def __init__(
        self,
        world: World,
        agents: Sequence[Agent],
        client: Sender,
        seed: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        virtual: bool = False,
        keep_text: bool = False,
        one_by_one: bool = False,
        invocations: Invocations | None = None,
    ) -> None:
        self._world, self._agents = world, agents
        self._reach: Reach = world.reach
        self.client: Sender = client
        self._seed, self._clock, self._virtual = seed, clock, virtual
        self._keep_text, self._one_by_one = keep_text, one_by_one
        self._ids = {agent.name: i for i, agent in enumerate(agents)}
        self._threads = DaemonThreads()
        self.threads_max = min(len(agents), THREADS_MAX) or 1
        """Plain agents that run at the same time."""
        self._free_threads = asyncio.Semaphore(self.threads_max)
        self.invocations = Invocations() if invocations is None else invocations
        self._tracked_loop: asyncio.AbstractEventLoop | None = None
        """The event loop whose tasks are mapped to invocations and strands."""
        self.computing: set[object] = set()
        """Calls of agents in threads that do not wait for an LLM; updated on the event loop."""

    async def run(self, dispatch: Dispatch, state: State, attempt: int = 0) -> Execution:
        """Let agents perceive `state`, proceed and act; commits nothing.

        `attempt` distinguishes executions of the same step.
        """
        self.track_tasks(asyncio.get_running_loop())
        names = [self._agents[i].name for i in dispatch.agents]
        parts = await self._gather(
            [
                self._act(part, dispatch.step, state)
                for part in split_into_clusters(state, self._reach, dispatch.step, names)
            ]
        )
        if self.client.exhausted is not None:  # an agent may have continued without its answer
            raise self.client.exhausted
        writes: dict[str, Entity | None] = {}
        actions: dict[str, Any] = {}
        calls: dict[AgentId, list[CallRecord]] = {}
        observed: dict[str, Reads] = {}
        resolved: dict[str, Reads] = {}
        for part, decided, seen, log in parts:
            calls |= log.calls
            observed |= seen
            resolved |= {member.name: member.reads for member in part}
            writes |= part.writes
            actions |= {name: copied(action) for name, action in decided.items()}
        return Execution(
            dispatch.step,
            dispatch.agents,
            actions,
            writes,
            [event for part, *_ in parts for event in part.events],
            calls,
            observed=observed,
            resolved=resolved,
            attempt=attempt,
            clusters=[ClusterEffects.of(part) for part, *_ in parts],
        )

    def track_tasks(self, loop: asyncio.AbstractEventLoop) -> None:
        """Attribute the tasks of `loop` to agents from now on."""
        if loop is not self._tracked_loop:
            follow_tasks(loop)
            self.invocations.follow_tasks(loop)
            self._tracked_loop = loop

    def close(self) -> None:
        """End the threads; those that still compute end by themselves."""
        self._threads.shutdown()

    def call_log(self) -> CallLog:
        """A new log, on this worker's clock."""
        idle = None if self._virtual else idles(asyncio.get_running_loop())
        return CallLog(self._clock, idle)

    def llm(self, name: str, step: Step, log: CallLog, *, speculative: bool = False) -> LLM:
        """The model of the agent `name` at `step`, which adds its calls to `log`."""
        return LLM(
            self.client,
            agent=self._ids[name],
            step=step,
            seed=self._seed,
            program=name,
            speculative=speculative,
            log=log,
            keep_text=self._keep_text,
        )

    async def _gather(self, coroutines: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        """Return the results of `coroutines`; if one fails, cancel the others."""
        if self._one_by_one or len(coroutines) == 1:
            try:
                return [await one for one in coroutines]
            finally:
                for one in coroutines:
                    one.close()
        tasks = [asyncio.ensure_future(one) for one in coroutines]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _act(
        self, names: Sequence[str], step: Step, state: State
    ) -> tuple[Transaction, dict[str, Any], dict[str, Reads], CallLog]:
        """Run the step of one cluster: all agents decide, then the world resolves the actions."""
        log = self.call_log()
        members = {name: self._agents[self._ids[name]] for name in names}
        llms = {name: self.llm(name, step, log) for name in names}
        decided = await self._gather(
            [self._proceed(agent, llms[name], step, state) for name, agent in members.items()]
        )
        actions = {name: action for name, (action, _) in zip(names, decided, strict=True)}
        observed = {name: reads for name, (_, reads) in zip(names, decided, strict=True)}
        cluster = self.transaction(state, step, actions, members, llms)
        with in_strand(log.resolving()):
            await self.resolve(cluster)
        return cluster, actions, observed, log

    async def _proceed(self, agent: Agent, llm: LLM, step: Step, state: State) -> tuple[Any, Reads]:
        observation, reads = self.observe(agent, step, state)
        return await self.decide(agent, observation, llm), reads

    def observe(self, agent: Agent, step: Step, state: State) -> tuple[Any, Reads]:
        """Begin the agent's step; returns its observation, and what that was made of."""
        agent.begin_step(self._seed, step)
        view = View(state, self._reach, self._seed, step, agent.name)
        observe = self._world.observe
        with Invocation(self.invocations, step, (agent.name,), observe, self._world):
            return observe(view), view.reads

    async def decide(self, agent: Agent, observation: Any, llm: LLM) -> Any:
        """The agent's action."""
        with in_strand(llm.log.strand()):
            return await self._call(agent.proceed, observation, llm)

    def transaction(
        self,
        state: State,
        step: Step,
        actions: Mapping[str, Any],
        members: Mapping[str, Agent],
        llms: Mapping[str, LLM],
        before_answer: Callable[[str], None] = lambda _: None,
    ) -> Transaction:
        """The cluster of `members`, whose `actions` the world will resolve.

        `before_answer` is called before a member answers, and so may change its mind.
        """

        async def answer(name: str, question: Any) -> Any:
            before_answer(name)
            return await self._call(members[name].answer, question, llms[name])

        return Transaction(state, self._reach, self._seed, step, actions, answer)

    def intent(self, agent: Agent, body: Entity, steps: int) -> list[Position]:
        """Where `agent`, whose body is `body`, expects to be in the steps after the next one."""
        path = []
        with Invocation(self.invocations, agent.step, (agent.name,), agent.intent, agent):
            for position in islice(agent.intent(body.position), steps):
                path.append(replace(body, position=position).position)
                if (flaw := self._world.metric.flaw(path[-1])) is not None:
                    raise MetropolisError(
                        f"step {agent.step}, agent {agent.name!r}: it expects to be at "
                        f"{position!r:.80}: {flaw}"
                    )
        return path

    async def resolve(self, cluster: Transaction) -> None:
        """Let the world turn the actions of `cluster` into writes."""
        world, names = self._world, [member.name for member in cluster]
        with Invocation(self.invocations, cluster.step, names, world.resolve, world):
            resolving = world.resolve(cluster)
            if resolving is not None:
                await resolving

    async def _call(self, method: Callable[[Any, Any], Any], argument: Any, llm: LLM) -> Any:
        """Return the result of an agent's method, plain or async."""
        agent: Agent = method.__self__  # type: ignore[attr-defined]
        invocation = Invocation(self.invocations, agent.step, (agent.name,), method, agent, llm)
        if _is_async(method.__func__):  # type: ignore[attr-defined]
            with invocation:
                return await method(argument, llm)
        loop = asyncio.get_running_loop()
        call, computing, is_cancelled = object(), self.computing, False

        def compute() -> None:
            if not is_cancelled:  # otherwise nobody waits for the thread
                computing.add(call)

        blocking = BlockingLLM(
            llm, loop, on_block=partial(computing.discard, call), on_unblock=compute
        )
        strand = current_strand()
        async with self._free_threads:
            if strand is not None:
                strand.catch_up()
            compute()
            try:
                with invocation:
                    answer, error = await loop.run_in_executor(
                        self._threads, _in_thread, invocation, method, argument, blocking
                    )
                    if error is not None:
                        raise error
                    return answer
            except asyncio.CancelledError:
                blocking.cancel()
                raise
            finally:
                if strand is not None:
                    strand.has_computed()
                is_cancelled = True
                computing.discard(call)


_is_async = cache(inspect.iscoroutinefunction)


def _in_thread(
    invocation: Invocation, method: Callable[[Any, Any], Any], argument: Any, llm: BlockingLLM
) -> tuple[Any, BaseException | None]:
    """Return what `method` returns or raises; asyncio cannot pass on every error."""
    invocation.thread = get_ident()
    try:
        return method(argument, llm), None
    except BaseException as error:  # noqa: BLE001 -- raised in the invocation
        return None, error


def copied(action: Any) -> Any:
    """A snapshot of `action`: agents may change returned lists and mappings later."""
    if is_immutable(action):
        return action  # it may be compared by identity
    if isinstance(action, Mapping):
        return {key: copied(value) for key, value in action.items()}
    if type(action) is list:
        return [copied(value) for value in action]
    return deepcopy(action)
