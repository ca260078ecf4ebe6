"""The two halves of a step as this process runs them; see `metropolis.speculation.base`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from metropolis.llm.agent import LLM
from metropolis.llm.call_log import CallLog, CallRecord, in_strand
from metropolis.speculation.base import ExecutionId
from metropolis.store.execution import ClusterEffects, Execution
from metropolis.types import AgentId, Position, Step
from metropolis.workers.cluster_step import copied
from metropolis.workers.local import LocalWorker
from metropolis.workers.optimistic.joining_client import JoiningClient
from metropolis.workers.optimistic.minds import Mind, Minds
from metropolis.world.base import Agent
from metropolis.world.entities import Entity, Event
from metropolis.world.state import State
from metropolis.world.transaction import Member, Transaction
from metropolis.world.view import Reads

FORECAST_STEPS = 20


class Observer(Protocol):
    """Learns what becomes of the executions of agents that run ahead."""

    def began(self, step: Step, agent: AgentId) -> None:
        """An execution begins; earlier ones of the agent-step were wrong."""

    def requested(self, step: Step, agent: AgentId, requests: Sequence[CallRecord]) -> None:
        """The requests that were sent for an agent-step which is final now.

        Its calls got the answers of some of them; the others were sent in vain.
        """


def _lacks_answers(calls: Sequence[CallRecord]) -> bool:
    """Whether a call has no answer, or none yet."""
    return any(call.failed or call.completed is None for call in calls)


@dataclass(eq=False)
class OneProceed:
    """One agent observes and decides."""

    id: ExecutionId
    step: Step
    number: AgentId
    name: str
    before: Mind
    llm: LLM
    sure: bool
    reads: Reads | None = None
    observed: int = 0
    """The number of `reads` of its observation."""
    began_sure: bool = False
    """Whether it reads final values only."""
    action: Any = None
    mind: Mind | None = None
    """After the decision; None: not decided."""
    task: asyncio.Task[None] | None = None

    @property
    def agents(self) -> tuple[AgentId, ...]:
        """The agent."""
        return (self.number,)

    @property
    def log(self) -> CallLog:
        """The agent's calls."""
        return self.llm.log

    @property
    def decided(self) -> Mind:
        """`mind`, of a proceed that has ended."""
        assert self.mind is not None
        return self.mind

    def decide(self, action: Any, mind: Mind) -> None:
        """Set the action, and the mind after it."""
        self.action, self.mind = action, mind

    def promote(self) -> None:
        """Its further requests are needed."""
        self.sure = True
        self.llm.promote()

    def may_be_misled(self, client: JoiningClient) -> bool:
        """Whether something other than its observation and answers may have led to its decision.

        The agent has read predictions through a view after its observation, or a call has no
        answer, perhaps only because it was held back or ranked last.
        """
        if self.began_sure:
            return client.has_given_up(self.number, self.step)
        has_read_late = self.reads is not None and len(self.reads) > self.observed
        return has_read_late or _lacks_answers(self.llm.calls)


@dataclass(eq=False)
class OneResolution:
    """The world resolves the actions of a cluster."""

    id: ExecutionId
    step: Step
    agents: tuple[AgentId, ...]
    proceeds: Sequence[OneProceed]
    sure: bool
    log: CallLog
    llms: Mapping[str, LLM]
    answering: dict[str, Agent] = field(default_factory=dict)
    """The members that have answered the world, whose minds may have changed."""
    cluster: Transaction | None = None
    resolving: Awaitable[None] | None = None
    """What the world has left to do for the cluster."""
    task: asyncio.Task[None] | None = None
    is_predicted: bool = False
    """Whether others see its writes."""
    actions: Mapping[str, Any] = field(default_factory=dict)
    """The members' actions, which the world may change."""
    minds: dict[AgentId, Mind] = field(default_factory=dict)
    """After the step."""
    writes: Mapping[str, Entity | None] = field(default_factory=dict)
    events: Sequence[Event] = ()
    reads: Mapping[str, Reads] = field(default_factory=dict)
    """By member."""
    effects: Sequence[ClusterEffects] = ()
    forecasts: dict[AgentId, tuple[Entity, Sequence[Position]]] = field(default_factory=dict)
    """Member -> its body after the step, and where it expects to be in the steps after the next."""

    @classmethod
    def of(
        cls, id: ExecutionId, step: Step, proceeds: Sequence[OneProceed], sure: bool
    ) -> OneResolution:
        """The resolution that follows `proceeds`, which have ended."""
        first, *others = (one.llm.log for one in proceeds)
        log = first.joined(others)
        llms = {one.name: one.llm.continued(log, speculative=not sure) for one in proceeds}
        agents = tuple(one.number for one in proceeds)
        return cls(id, step, agents, proceeds, sure, log, llms)

    def may_be_misled(self, client: JoiningClient) -> bool:
        """See `OneProceed`."""
        if not self.sure:
            return any(map(_lacks_answers, self.log.calls.values()))
        return any(client.has_given_up(agent, self.step) for agent in self.agents)

    @property
    def members(self) -> Sequence[Member]:
        """The members of the cluster, until `end`."""
        assert self.cluster is not None
        return self.cluster.members

    def begin(self, local: LocalWorker, state: State, minds: Minds) -> None:
        """Let the world resolve the actions, or begin to."""
        of = {one.name: one for one in self.proceeds}

        def agent_of(name: str) -> Agent:
            if name not in self.answering:
                self.answering[name] = minds.take(of[name].number, of[name].decided, self.step)
            return self.answering[name]

        self.actions = actions = {one.name: copied(one.action) for one in self.proceeds}
        self.cluster = local.transaction(state, self.step, actions, agent_of, self.llms.__getitem__)
        with in_strand(self.log.resolving()):
            self.resolving = local.begin_to_resolve(self.cluster)

    async def complete(self, local: LocalWorker) -> None:
        """Await `resolving`."""
        assert self.cluster is not None
        with in_strand(self.log.resolving()):
            await local.resolve(self.cluster, self.resolving)

    def end(self) -> None:
        """Drop what only resolving needs: it is in reference cycles, which are freed late.

        The task has ended, or was cancelled before it began.
        """
        if isinstance(self.resolving, Coroutine):
            self.resolving.close()
        elif isinstance(self.resolving, asyncio.Future):
            self.resolving.cancel()
        if self.cluster is not None:
            self.cluster.end()
        for llm in self.llms.values():
            llm.end()
        self.cluster = self.resolving = None
        self.answering = {}

    def collect(self, local: LocalWorker, state: State, minds: Minds) -> None:
        """Take the results of the resolved cluster, and the members' minds after the step."""
        cluster = self.cluster
        assert cluster is not None
        self.writes, self.events = cluster.writes, cluster.events
        self.effects = [ClusterEffects.of(cluster)]
        self.reads = {member.name: member.reads for member in cluster}
        for one in self.proceeds:
            mind = one.decided
            if (agent := self.answering.get(one.name)) is not None:
                mind = Mind(agent, minds.save(one.number, agent, mind.saved))
            self.minds[one.number] = mind
            body = self.writes.get(one.name) or state.entity(one.name, self.step)
            assert body is not None
            self.forecasts[one.number] = body, self._intent(local, minds, one.number, mind, body)

    def _intent(
        self, local: LocalWorker, minds: Minds, number: AgentId, mind: Mind, body: Entity
    ) -> Sequence[Position]:
        """Where an agent with `mind` expects to be in the steps after the next one."""
        path = mind.intents.get(body.position)
        if path is None:
            agent = minds.take(number, mind, self.step)
            with minds.unchanged_by_intent(number, agent):
                path = mind.intents[body.position] = local.intent(agent, body, FORECAST_STEPS)
            mind.agent = agent
        return path

    def execution(self) -> Execution:
        """The record of the whole step."""
        return Execution(
            self.step,
            self.agents,
            {name: copied(action) for name, action in self.actions.items()},
            self.writes,
            self.events,
            self.log.calls,
            observed={one.name: one.reads for one in self.proceeds if one.reads},
            resolved=self.reads,
            clusters=self.effects,
        )
