"""Runs clusters in this process: `async` agents on the event loop, plain ones in threads."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import islice
from threading import get_ident
from typing import Any

from metropolis.daemon_threads import DaemonThreads
from metropolis.llm.agent import LLM, Sender
from metropolis.llm.blocking import BlockingLLM
from metropolis.llm.call_log import CallLog, current_strand, in_strand
from metropolis.llm.followed_tasks import follow_tasks
from metropolis.names import cut
from metropolis.store.execution import Execution
from metropolis.types import Dispatch, MetropolisError, Position, Step
from metropolis.workers.cluster_step import (
    ClusterStep,
    ClusterSteps,
    LatestExecutions,
    decided,
    gather,
    has_routine,
)
from metropolis.workers.event_loop import idles
from metropolis.workers.invocations import Invocation, Invocations, assign_tasks
from metropolis.world.base import UNDECIDED, Agent, World
from metropolis.world.entities import Entity, checked_position
from metropolis.world.state import State
from metropolis.world.transaction import Transaction, split_into_clusters
from metropolis.world.view import Reach, View

THREADS_MAX = 1024


@contextmanager
def _drawn_apart(agent: Agent) -> Iterator[None]:
    """Keep what `agent` draws in the block from changing its later draws in the step."""
    drawn_at, random = agent._drawn_at, getattr(agent, "_random", None)
    agent._drawn_at = -1
    try:
        yield
    finally:
        agent._drawn_at = drawn_at
        if random is not None:
            agent._random = random


class LocalWorker:
    """Runs clusters of one world's agents.

    Requests go through `client`; `clock` gives their times, `virtual` says whether it is the clock
    of `VirtualInstances`, and `keep_text` whether to keep texts. With `one_by_one` the members of a
    cluster run sequentially.
    """

    begins_at_once = True
    """Whether a dispatched cluster may begin before its task runs."""

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
        self._seed, self.clock, self._virtual = seed, clock, virtual
        self._keep_text, self._one_by_one = keep_text, one_by_one
        self._ids = {agent.name: i for i, agent in enumerate(agents)}
        self._latest: LatestExecutions = {}
        self._threads = DaemonThreads("agents")
        self.threads_max = min(len(agents), THREADS_MAX) or 1
        """Plain agents that run at the same time."""
        self._free_threads = asyncio.Semaphore(self.threads_max)
        self.invocations = Invocations() if invocations is None else invocations
        self._tracked_loop: asyncio.AbstractEventLoop | None = None
        """The event loop whose tasks are mapped to invocations and strands."""
        self.uses_routines = True
        """Whether agents may decide by `Agent.routine`."""
        self.computing: set[object] = set()
        """Calls of agents in threads that do not wait for an LLM; updated on the event loop."""

    async def run(self, dispatch: Dispatch, state: State, attempt: int = 0) -> Execution:
        """Let agents perceive `state`, proceed and act; commits nothing.

        `attempt` distinguishes executions of the same step.
        """
        return await self.complete(self.begin(dispatch, state, attempt))

    def begin(self, dispatch: Dispatch, state: State, attempt: int = 0) -> ClusterSteps:
        """The part of `run` that waits for nothing: all of it, if no member needs a model."""
        step, agents = dispatch.step, [self._agents[i] for i in dispatch.agents]
        views = [View(state, self._reach, self._seed, step, agent.name) for agent in agents]
        groups = split_into_clusters(self._reach, [view.position for view in views])
        begun = ClusterSteps(dispatch, attempt, state, [], self._latest)
        try:
            for group in groups:
                begun.parts.append(
                    self._begin([agents[i] for i in group], [views[i] for i in group], state)
                )
        except BaseException:
            begun.close()
            raise
        return begun

    async def complete(self, begun: ClusterSteps) -> Execution:
        """The rest of `run`."""
        self.track_tasks(asyncio.get_running_loop())
        left = [part for part in begun.parts if not part.is_resolved]
        parts = {next(iter(part.members)): self._complete(part, begun.state) for part in left}
        try:
            await gather(begun.dispatch.step, parts, one_by_one=self._one_by_one)
        finally:
            begun.close()
        self.check_goes_on()
        return begun.execution()

    def check_goes_on(self) -> None:
        """Raise why the run ends, if it does: an agent may have continued without its answer."""
        reason = self.client.failure or self.invocations.end
        if reason is not None:
            raise reason

    @property
    def uses_threads(self) -> bool:
        """Whether an agent is plain, so that its calls of models keep threads."""
        methods = {of for one in self._agents for of in (type(one).proceed, type(one).answer)}
        return not all(_is_async(method) for method in methods - {Agent.answer})

    def track_tasks(self, loop: asyncio.AbstractEventLoop) -> None:
        """Attribute the tasks of `loop` to agents from now on."""
        if loop is not self._tracked_loop:
            follow_tasks(loop)
            assign_tasks(loop)
            self._tracked_loop = loop

    def close(self) -> None:
        """End the threads; those that still compute end by themselves."""
        self._threads.shutdown()

    def call_log(self) -> CallLog:
        """A new log, on this worker's clock."""
        idle = None if self._virtual else idles(asyncio.get_running_loop())
        return CallLog(self.clock, idle)

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

    def _begin(self, agents: Sequence[Agent], views: Sequence[View], state: State) -> ClusterStep:
        """Let the members of one cluster observe, and act if no action needs a model."""
        world, step = self._world, views[0].step
        part = ClusterStep(step, {agent.name: agent for agent in agents})
        observe, resolve = world.observe, world.resolve
        with Invocation(self.invocations, step, (views[0].name,), observe, world) as invocation:
            for view, agent in zip(views, agents, strict=True):
                agent.begin_step(self._seed, step)
                name = agent.name
                invocation.switch((name,), observe, world)
                observation = observe(view)
                part.observed[name] = view.reads
                action: Any = UNDECIDED
                if self._has_routine(agent):
                    invocation.switch((name,), agent.routine, agent)
                    action = self._routine(agent, observation)
                if action is UNDECIDED:
                    part.undecided[name] = observation
                part.actions[name] = decided(action, step, name)
            if not part.undecided:
                part.cluster = self._transaction(part, state)
                invocation.switch(list(part.members), resolve, world)
                try:
                    part.resolving = resolve(part.cluster)
                except Exception:  # only now: it would take time in every step
                    invocation.hint = partial(_odd_action, world, part.cluster)
                    raise
                if part.resolving is None:
                    part.cluster.complete()
        return part

    def _has_routine(self, agent: Agent) -> bool:
        return self.uses_routines and has_routine(type(agent))

    def _routine(self, agent: Agent, observation: Any) -> Any:
        return agent.routine(observation)

    async def _complete(self, part: ClusterStep, state: State) -> None:
        """Let the undecided members decide; then the world resolves the actions."""
        log = part.log = part.log or self.call_log()
        deciding = {
            name: self.decide(part.members[name], observation, self._llm_of(part, name))
            for name, observation in part.undecided.items()
        }
        part.actions |= await gather(part.step, deciding, one_by_one=self._one_by_one)
        if part.cluster is None:
            part.cluster = self._transaction(part, state)
        with in_strand(log.resolving()):
            await self.resolve(part.cluster, part.resolving)
        part.resolving = None

    def _transaction(self, part: ClusterStep, state: State) -> Transaction:
        return self.transaction(
            state, part.step, part.actions, part.members.__getitem__, partial(self._llm_of, part)
        )

    def _llm_of(self, part: ClusterStep, name: str) -> LLM:
        """The model of the member `name`."""
        llm = part.llms.get(name)
        if part.log is None:  # a task that `World.resolve` has started asks a member
            part.log = self.call_log()
        if llm is None:
            llm = part.llms[name] = self.llm(name, part.step, part.log)
        elif llm.has_ended:
            llm = part.llms[name] = llm.continued(part.log, speculative=False)
        return llm

    def observe(self, agent: Agent, step: Step, state: State) -> tuple[Any, View]:
        """Begin the agent's step; returns its observation, and the view that shows it."""
        agent.begin_step(self._seed, step)
        view = View(state, self._reach, self._seed, step, agent.name)
        observe = self._world.observe
        with Invocation(self.invocations, step, (agent.name,), observe, self._world):
            return observe(view), view

    def decide_by_routine(self, agent: Agent, observation: Any) -> Any:
        """The agent's action, if it needs no model, as it is now; otherwise UNDECIDED."""
        if not self._has_routine(agent):
            return UNDECIDED
        with Invocation(self.invocations, agent.step, (agent.name,), agent.routine, agent):
            action = self._routine(agent, observation)
            return action if action is UNDECIDED else decided(action, agent.step, agent.name)

    async def decide(self, agent: Agent, observation: Any, llm: LLM) -> Any:
        """The agent's action, as it is when the agent returns it."""
        with in_strand(llm.log.strand()):
            action = await self._call(agent.proceed, observation, llm)
        llm.end()
        with Invocation(self.invocations, agent.step, (agent.name,), agent.proceed, agent):
            return decided(action, agent.step, agent.name)

    def transaction(
        self,
        state: State,
        step: Step,
        actions: Mapping[str, Any],
        agent_of: Callable[[str], Agent],
        llm_of: Callable[[str], LLM],
    ) -> Transaction:
        """The cluster whose `actions` the world will resolve.

        `agent_of` is called before a member answers, and so may change its mind.
        """

        async def answer(name: str, question: Any) -> Any:
            return await self._call(agent_of(name).answer, question, llm_of(name))

        return Transaction(state, self._reach, self._seed, step, actions, answer)

    def intent(self, agent: Agent, body: Entity, steps: int) -> list[Position]:
        """Where `agent`, whose body is `body`, expects to be in the steps after the next one."""
        path = []
        with (
            _drawn_apart(agent),
            Invocation(self.invocations, agent.step, (agent.name,), agent.intent, agent),
        ):
            for position in islice(agent.intent(body.position), steps):
                path.append(checked_position(position, body.name))
                if (flaw := self._world.metric.flaw(path[-1])) is not None:
                    raise MetropolisError(
                        f"step {agent.step}, agent {agent.name!r}: it expects to be at "
                        f"{cut(position)}: {flaw}"
                    )
        return path

    def begin_to_resolve(self, cluster: Transaction) -> Awaitable[None] | None:
        """Let the world turn the actions of `cluster` into writes; returns what is left of it."""
        with self._resolving(cluster):
            resolving = self._world.resolve(cluster)
            if resolving is None:
                cluster.complete()
        return resolving

    async def resolve(self, cluster: Transaction, resolving: Awaitable[None] | None = None) -> None:
        """Let the world turn the actions of `cluster` into writes.

        `resolving` is what `World.resolve` has returned, if it has been called.
        """
        with self._resolving(cluster) as invocation:
            if resolving is None:
                resolving = self._world.resolve(cluster)
            if resolving is not None:
                if not isinstance(resolving, Awaitable):
                    raise MetropolisError(f"it returned {cut(resolving)}; it should return None")
                await resolving
            if invocation.inner:
                raise MetropolisError(
                    "it returned before the answer to a question; it should wait for its tasks"
                )
            cluster.complete()

    def _resolving(self, cluster: Transaction) -> Invocation:
        names, world = [member.name for member in cluster], self._world
        hint = partial(_odd_action, world, cluster)
        return Invocation(self.invocations, cluster.step, names, world.resolve, world, hint=hint)

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
            if not is_cancelled:  # otherwise the thread is abandoned
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


def _odd_action(world: World, cluster: Transaction) -> str:
    """The first action outside of the world's action space, if it declares one."""
    space = getattr(world, "action_space", None)
    if space is None:
        return ""
    from metropolis.world.spaces import misfit  # imports Gymnasium, only needed in an error

    for member in cluster:
        if not space.contains(member.action):
            return (
                f"; the action of {member.name!r} is not in the world's action space: "
                f"{misfit('the action', member.action, space)}"
            )
    return ""


def _in_thread(
    invocation: Invocation, method: Callable[[Any, Any], Any], argument: Any, llm: BlockingLLM
) -> tuple[Any, BaseException | None]:
    """Return what `method` returns or raises; asyncio cannot pass on every error."""
    invocation.thread = llm.thread = get_ident()
    try:
        return method(argument, llm), None
    except BaseException as error:  # noqa: BLE001 -- raised in the invocation
        return None, error
