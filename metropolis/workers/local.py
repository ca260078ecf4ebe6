"""Clusters in this process: `async` agents on the event loop, plain ones in threads."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial
from typing import Any

from metropolis.llm.agent import LLM, BlockingLLM
from metropolis.llm.client import Client
from metropolis.store.outcome import Outcome
from metropolis.types import AgentId, Dispatch, Step
from metropolis.world.base import Agent, World
from metropolis.world.entities import Entity
from metropolis.world.state import State
from metropolis.world.transaction import Transaction, apart
from metropolis.world.view import Reach, View

THREADS_MAX = 1024
_UNCHANGING = (str, int, float, bool, type(None))


class LocalWorker:
    """Runs clusters of one world's agents.

    They ask through `client`; `clock` tells when, and `keep_text` whether their texts are kept.
    With `one_by_one` the members of a cluster take their turns one after the other.
    """

    def __init__(
        self,
        world: World,
        agents: Sequence[Agent],
        client: Client,
        seed: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        keep_text: bool = False,
        one_by_one: bool = False,
    ) -> None:
        self._world, self._agents = world, agents
        self._reach: Reach = world.reach
        self._client, self._seed, self._clock = client, seed, clock
        self._keep_text, self._one_by_one = keep_text, one_by_one
        self._ids = {agent.name: i for i, agent in enumerate(agents)}
        threads = min(len(agents), THREADS_MAX) or 1
        self._threads = ThreadPoolExecutor(threads)
        self._free_threads = asyncio.Semaphore(threads)
        self.computing = 0
        """Threads in which agents run and do not wait for an LLM; kept on the event loop."""

    async def run(self, dispatch: Dispatch, state: State) -> Outcome:
        """Let agents perceive `state`, proceed and act; nothing is committed."""
        names = [self._agents[i].name for i in dispatch.agents]
        llms = {
            name: self._llm(i, dispatch.step)
            for i, name in zip(dispatch.agents, names, strict=True)
        }
        parts = await self._all(
            [
                self._act(part, llms, dispatch.step, state)
                for part in apart(state, self._reach, dispatch.step, names)
            ]
        )
        if self._client.exhausted is not None:  # an agent may have gone on without its answer
            raise self._client.exhausted
        writes: dict[str, Entity | None] = {}
        actions: dict[str, Any] = {}
        for part, decided in parts:
            writes |= part.writes
            actions |= {name: copied(action) for name, action in decided.items()}
        return Outcome(
            dispatch.step,
            dispatch.agents,
            actions,
            writes,
            [event for part, _ in parts for event in part.events],
            {self._ids[name]: llm.calls for name, llm in llms.items() if llm.calls},
        )

    def close(self) -> None:
        """End the threads; those that still compute are left to end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _llm(self, agent: AgentId, step: Step) -> LLM:
        return LLM(
            self._client,
            agent=agent,
            step=step,
            seed=self._seed,
            program=self._agents[agent].name,
            clock=self._clock,
            keep_text=self._keep_text,
        )

    async def _all(self, turns: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        """What `turns` return; when one fails, nothing of the others goes on."""
        if self._one_by_one or len(turns) == 1:
            try:
                return [await turn for turn in turns]
            finally:
                for turn in turns:
                    turn.close()
        tasks = [asyncio.ensure_future(turn) for turn in turns]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _act(
        self, names: Sequence[str], llms: Mapping[str, LLM], step: Step, state: State
    ) -> tuple[Transaction, dict[str, Any]]:
        """The step of one cluster: everybody decides, then all of it happens."""
        decided = await self._all([self._proceed(name, llms[name], step, state) for name in names])
        actions = dict(zip(names, decided, strict=True))
        cluster = Transaction(
            state, self._reach, self._seed, step, actions, partial(self._answer, llms)
        )
        resolving = self._world.resolve(cluster)
        if resolving is not None:
            await resolving
        return cluster, actions

    async def _proceed(self, name: str, llm: LLM, step: Step, state: State) -> Any:
        agent = self._agents[self._ids[name]]
        agent.begin(self._seed, step)
        view = View(state, self._reach, self._seed, step, name)
        return await self._call(agent.proceed, self._world.observe(view), llm)

    async def _answer(
        self, llms: Mapping[str, LLM], beginner: str, name: str, question: Any
    ) -> Any:
        llm = llms[name].logged_with(llms[beginner])
        return await self._call(self._agents[self._ids[name]].answer, question, llm)

    async def _call(self, method: Callable[[Any, Any], Any], asked: Any, llm: LLM) -> Any:
        """What an agent's method returns, be it plain or async."""
        if inspect.iscoroutinefunction(method):
            return await method(asked, llm)
        loop = asyncio.get_running_loop()
        blocking = BlockingLLM(llm, loop, on_block=self._stop_computing, on_unblock=self._compute)
        async with self._free_threads:
            self._compute()
            try:
                return await loop.run_in_executor(self._threads, method, asked, blocking)
            finally:
                self._stop_computing()

    def _compute(self) -> None:
        self.computing += 1

    def _stop_computing(self) -> None:
        self.computing -= 1


def copied(action: Any) -> Any:
    """`action` as it is now: agents may go on with the lists and mappings they have returned."""
    if isinstance(action, _UNCHANGING):
        return action
    if isinstance(action, Mapping):
        return {key: copied(value) for key, value in action.items()}
    if type(action) is list:
        return [copied(value) for value in action]
    return deepcopy(action)
