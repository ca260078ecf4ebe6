"""Runs clusters in this process: `async` agents on the event loop, plain ones in threads."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from copy import deepcopy
from functools import cache, partial
from threading import get_ident
from typing import Any

from metropolis.llm.agent import LLM, BlockingLLM
from metropolis.llm.call_log import CallLog, CallRecord, current_strand, follow_tasks, in_strand
from metropolis.llm.client import Client
from metropolis.store.execution import Execution
from metropolis.types import AgentId, Dispatch, Step
from metropolis.workers.event_loop import idles
from metropolis.workers.invocations import Invocation, Invocations
from metropolis.workers.threads import DaemonThreads
from metropolis.world.base import Agent, World
from metropolis.world.entities import Entity
from metropolis.world.state import State
from metropolis.world.transaction import Transaction, split_into_clusters
from metropolis.world.view import Reach, Reads, View

THREADS_MAX = 1024
_UNCHANGING = (str, int, float, bool, type(None))


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
        client: Client,
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
        self._client, self._seed, self._clock, self._virtual = client, seed, clock, virtual
        self._keep_text, self._one_by_one = keep_text, one_by_one
        self._ids = {agent.name: i for i, agent in enumerate(agents)}
        self._threads = DaemonThreads()
        self._free_threads = asyncio.Semaphore(min(len(agents), THREADS_MAX) or 1)
        self.invocations = Invocations() if invocations is None else invocations
        self._tracked_loop: asyncio.AbstractEventLoop | None = None
        """The event loop whose tasks are mapped to invocations and strands."""
        self.computing = 0
        """Threads in which agents run without waiting for an LLM; updated on the event loop."""

    async def run(self, dispatch: Dispatch, state: State, attempt: int = 0) -> Execution:
        """Let agents perceive `state`, proceed and act; commits nothing.

        `attempt` distinguishes executions of the same step.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._tracked_loop:
            follow_tasks(loop)
            self.invocations.follow_tasks(loop)
            self._tracked_loop = loop
        names = [self._agents[i].name for i in dispatch.agents]
        parts = await self._gather(
            [
                self._act(part, dispatch.step, state)
                for part in split_into_clusters(state, self._reach, dispatch.step, names)
            ]
        )
        if self._client.exhausted is not None:  # an agent may have continued without its answer
            raise self._client.exhausted
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
        )

    def close(self) -> None:
        """End the threads; those that still compute end by themselves."""
        self._threads.shutdown()

    def _llm(self, name: str, step: Step, log: CallLog) -> LLM:
        agent = self._ids[name]
        return LLM(
            self._client,
            agent=agent,
            step=step,
            seed=self._seed,
            program=name,
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
        loop = asyncio.get_running_loop()
        log = CallLog(self._clock, None if self._virtual else idles(loop))
        llms = {name: self._llm(name, step, log) for name in names}
        decided = await self._gather(
            [self._proceed(name, llm, log, step, state) for name, llm in llms.items()]
        )
        actions = {name: action for name, (action, _) in zip(names, decided, strict=True)}
        observed = {name: reads for name, (_, reads) in zip(names, decided, strict=True)}
        cluster = Transaction(
            state, self._reach, self._seed, step, actions, partial(self._answer, llms)
        )
        world = self._world
        with (
            in_strand(log.resolving()),
            Invocation(self.invocations, step, names, world.resolve, world),
        ):
            resolving = world.resolve(cluster)
            if resolving is not None:
                await resolving
        return cluster, actions, observed, log

    async def _proceed(
        self, name: str, llm: LLM, log: CallLog, step: Step, state: State
    ) -> tuple[Any, Reads]:
        agent, world = self._agents[self._ids[name]], self._world
        agent.begin_step(self._seed, step)
        view = View(state, self._reach, self._seed, step, name)
        with Invocation(self.invocations, step, (name,), world.observe, world):
            observation = world.observe(view)
        with in_strand(log.strand()):
            return await self._call(agent.proceed, observation, llm), view.reads

    async def _answer(self, llms: Mapping[str, LLM], name: str, question: Any) -> Any:
        return await self._call(self._agents[self._ids[name]].answer, question, llms[name])

    async def _call(self, method: Callable[[Any, Any], Any], argument: Any, llm: LLM) -> Any:
        """Return the result of an agent's method, plain or async."""
        agent: Agent = method.__self__  # type: ignore[attr-defined]
        invocation = Invocation(self.invocations, agent.step, (agent.name,), method, agent, llm)
        if _is_async(method.__func__):  # type: ignore[attr-defined]
            with invocation:
                return await method(argument, llm)
        loop = asyncio.get_running_loop()
        blocking = BlockingLLM(llm, loop, on_block=self._stop_computing, on_unblock=self._compute)
        strand = current_strand()
        async with self._free_threads:
            if strand is not None:
                strand.catch_up()
            self._compute()
            try:
                with invocation:
                    answer, error = await loop.run_in_executor(
                        self._threads, _in_thread, invocation, method, argument, blocking
                    )
                    if error is not None:
                        raise error
                    return answer
            finally:
                if strand is not None:
                    strand.has_computed()
                self._stop_computing()

    def _compute(self) -> None:
        self.computing += 1

    def _stop_computing(self) -> None:
        self.computing -= 1


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
    if isinstance(action, _UNCHANGING):
        return action
    if isinstance(action, Mapping):
        return {key: copied(value) for key, value in action.items()}
    if type(action) is list:
        return [copied(value) for value in action]
    return deepcopy(action)
