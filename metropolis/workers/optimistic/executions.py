"""The two halves of a step as this process runs them; see `metropolis.speculation.base`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from metropolis.llm.agent import LLM
from metropolis.llm.call_log import CallLog, CallRecord, in_strand
from metropolis.speculation.base import ExecutionId
from metropolis.store.execution import ClusterEffects, Execution
from metropolis.types import AgentId, Position, Step
from metropolis.workers.cluster_step import copied
from metropolis.workers.local import LocalWorker
from metropolis.workers.optimistic.minds import Mind, Minds
from metropolis.world.base import Agent
from metropolis.world.entities import Entity, Event
from metropolis.world.parts import Parts
from metropolis.world.state import State
from metropolis.world.view import Reads

FORECAST_STEPS = 20


class Observer(Protocol):
    """Learns what becomes of the executions of agents that run ahead."""

    def began(self, step: Step, agent: AgentId) -> None:
        """An execution begins; earlier ones of the agent-step were wrong."""

    def was_wrong(self, step: Step, agent: AgentId, calls: Sequence[CallRecord]) -> None:
        """An execution was wrong; some of its `calls` may still be in flight."""


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
    asked: int = 0
    """The number of questions that its observation asked."""
    began_sure: bool = False
    """Whether it reads final values only."""
    action: Any = None
    mind: Mind | None = None
    """After the decision."""
    task: asyncio.Task[None] | None = None

    @property
    def agents(self) -> tuple[AgentId, ...]:
        """The agent."""
        return (self.number,)

    def promote(self) -> None:
        """Its further requests are needed."""
        self.sure = True
        self.llm.promote()

    @property
    def has_read_late(self) -> bool:
        """Whether predictions were read after the observation, by a view that the agent got."""
        return not self.began_sure and self.reads is not None and len(self.reads) > self.asked


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
    members: dict[str, Agent]
    """The members' objects, while the world resolves."""
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
    def begin(
        cls,
        id: ExecutionId,
        step: Step,
        proceeds: Sequence[OneProceed],
        sure: bool,
        minds: Minds,
    ) -> OneResolution:
        """Take the members' minds after they decided."""
        first, *others = (one.llm.log for one in proceeds)
        log = first.joined(others)
        llms, members = {}, {}
        for one in proceeds:
            assert one.mind is not None
            members[one.name] = minds.take(one.number, one.mind, step)
            llms[one.name] = one.llm.continued(log, speculative=not sure)
        agents = tuple(one.number for one in proceeds)
        return cls(id, step, agents, proceeds, sure, log, llms, members)

    async def resolve(self, local: LocalWorker, state: State, minds: Minds) -> None:
        """Let the world resolve the actions; save the members' minds after the step."""
        of, members = {one.name: one for one in self.proceeds}, self.members

        def before_answer(name: str) -> None:
            one = of[name]
            assert one.mind is not None
            minds.keep(one.number, one.mind, members[name])

        self.actions = actions = {one.name: copied(one.action) for one in self.proceeds}
        cluster = local.transaction(
            state, self.step, actions, members, self.llms.__getitem__, before_answer
        )
        with in_strand(self.log.resolving()):
            await local.resolve(cluster)
        self.writes, self.events = cluster.writes, cluster.events
        self.effects = [ClusterEffects.of(cluster)]
        self.reads = {member.name: member.reads for member in cluster}
        for one in self.proceeds:
            agent = members[one.name]
            saved = minds.save(one.number, agent, one.before.saved)
            self.minds[one.number] = Mind(agent, saved)
            body = self.writes.get(one.name) or state.entity(one.name, self.step)
            assert body is not None
            path = local.intent(agent, body, FORECAST_STEPS)
            minds.check_intent(one.number, agent, saved)
            if path:
                self.forecasts[one.number] = body, path
            self._keep(minds, one, saved)
        self.members = {}

    def abandon(self, minds: Minds) -> None:
        """Leave the members' minds as they were after they decided."""
        if self.members:
            for one in self.proceeds:
                self._keep(minds, one)

    def _keep(self, minds: Minds, one: OneProceed, saved: Parts | None = None) -> None:
        """A member whose mind is not kept has not answered: it has not changed since."""
        assert one.mind is not None
        minds.keep(one.number, one.mind, self.members[one.name], saved)

    def promote(self) -> None:
        """Its further requests are needed."""
        self.sure = True
        for llm in self.llms.values():
            llm.promote()

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
