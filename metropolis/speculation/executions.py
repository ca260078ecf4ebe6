"""The executions of a speculative run, and what is true of them: the predicates of the reference.

An execution is *valid* while its inputs are as they were: the mind it began with, the answers to
its questions, and for a resolution also its members' proceeds and who else is there. It is *final*
when its inputs are as the final versions say: nothing can change them any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from metropolis.rules.metrics import Metric
from metropolis.speculation.base import Digest, ExecutionId, Reads, Value
from metropolis.speculation.versions import Result, Versions
from metropolis.types import AgentId, Dispatch, Position, Step


@dataclass(eq=False)
class OneProceed:
    """One agent's half of a step."""

    id: ExecutionId
    agent: AgentId
    step: Step
    before: Digest
    """The mind it begins with."""
    sure: bool
    reads: Reads | None = None
    """None: not observed yet."""
    ended: bool = False

    @property
    def members(self) -> tuple[AgentId, ...]:
        """The agent."""
        return (self.agent,)


@dataclass(eq=False)
class OneResolution:
    """One cluster's half of a step."""

    id: ExecutionId
    step: Step
    proceeds: tuple[OneProceed, ...]
    sure: bool
    valid: bool = True
    reads: Reads = ()
    result: Result | None = None
    """None: in flight."""
    minds: Mapping[AgentId, Digest] = field(default_factory=dict)
    forecast_of: AgentId | None = None
    """Nothing was executed: the result, which is never valid, is a forecast of this agent."""

    @property
    def members(self) -> tuple[AgentId, ...]:
        """The cluster, ascending."""
        if self.forecast_of is not None:
            return (self.forecast_of,)
        return tuple(each.agent for each in self.proceeds)

    @property
    def writes(self) -> Mapping[str, Value | None]:
        """Entity -> its new value; empty while in flight."""
        return {} if self.result is None else self.result.writes


class Executions:
    """All executions that are not committed, with the versions that they read and wrote."""

    def __init__(
        self,
        metric: Metric,
        cluster_radius: float,
        bodies: Sequence[str],
        entities: Mapping[str, Value],
        minds: Sequence[Digest],
    ) -> None:
        """Parameters as of `ReferenceSpeculation`."""
        self._metric, self._radius, self.bodies = metric, cluster_radius, list(bodies)
        self.agents = range(len(bodies))
        self.versions = Versions(metric, entities)
        self.final: list[Step] = [0 for _ in bodies]
        """The first step of each agent that is not committed."""
        self.final_minds = list(minds)
        self.turns: dict[AgentId, Dispatch] = {}
        """Agent -> the cluster that the controller has dispatched and that is not committed."""
        self.proceeds: list[dict[Step, OneProceed]] = [{} for _ in bodies]
        """Agent -> step -> its valid proceed, in flight or ended."""
        self.results: list[dict[Step, OneResolution]] = [{} for _ in bodies]
        """Agent -> step -> its ended resolution: valid, or kept as a prediction only."""
        self.resolving: dict[ExecutionId, OneResolution] = {}
        """The valid resolutions in flight."""
        self.held: set[tuple[AgentId, Step]] = set()
        """Agent-steps that failed speculatively: not repeated before they are sure."""

    def next(self, agent: AgentId) -> Step:
        """The first step without a valid result."""
        step = self.final[agent]
        while (result := self.results[agent].get(step)) is not None and result.valid:
            step += 1
        return step

    def first_unproceeded(self, agent: AgentId) -> Step:
        """The first step without a valid proceed, in flight or ended."""
        step = self.final[agent]
        while step in self.proceeds[agent]:
            step += 1
        return step

    def mind_before(self, agent: AgentId, step: Step) -> tuple[Digest, ExecutionId | None] | None:
        """The mind at the beginning of `step`, and the resolution whose result it is.

        The resolution is None if the mind is final. Returns None if the step before has no valid
        result.
        """
        if step == self.final[agent]:
            return self.final_minds[agent], None
        result = self.results[agent].get(step - 1)
        if result is None or not result.valid:
            return None
        return result.minds[agent], result.id

    def is_valid(self, proceed: OneProceed) -> bool:
        """Whether its inputs are as they were. A mind that is being replaced may stay the same."""
        mind = self.mind_before(proceed.agent, proceed.step)
        return (mind is None or mind[0] == proceed.before) and (
            proceed.sure or self.holds(proceed.reads or (), proceed.step, final=False)
        )

    def is_valid_resolution(self, resolution: OneResolution) -> bool:
        """Whether its proceeds are the valid ones, nobody else belongs to it, its reads hold."""
        step = resolution.step
        if any(self.proceeds[one.agent].get(step) is not one for one in resolution.proceeds):
            return False
        if resolution.sure:
            return True
        others = [b for b in self.eligible(step) if b not in resolution.members]
        return not any(
            self.coupled(a, b, step) for a in resolution.members for b in others
        ) and self.holds(resolution.reads, step, final=False)

    def is_final(self, proceed: OneProceed) -> bool:
        """Whether its inputs are as the final versions say."""
        return (
            proceed.step == self.final[proceed.agent]
            and proceed.before == self.final_minds[proceed.agent]
            and self.holds(proceed.reads or (), proceed.step, final=True)
        )

    def may_commit(self, turn: Dispatch, result: OneResolution) -> bool:
        """Whether it is that of the dispatched cluster, with final inputs, and moves no other."""
        moved = {agent for agent, body in enumerate(self.bodies) if body in result.writes}
        return (
            result.forecast_of is None
            and result.members == turn.agents
            and moved <= set(result.members)
            and all(self.is_final(proceed) for proceed in result.proceeds)
            and self.holds(result.reads, turn.step, final=True)
        )

    def holds(self, reads: Reads, step: Step, *, final: bool) -> bool:
        """Whether each question has the same answer now."""
        return all(
            self.versions.answer(question, step, final=final) == answer
            for question, answer in reads
        )

    def may_speculate(self, agent: AgentId, target_step: Step) -> bool:
        """Whether the agent is a candidate; see `Speculation.candidates`."""
        step = self.next(agent)
        return (
            step < target_step
            and step not in self.proceeds[agent]
            and (agent, step) not in self.held
        )

    def eligible(self, step: Step) -> list[AgentId]:
        """The agents that may be resolved speculatively: their proceeds of `step` have ended."""
        return [
            agent
            for agent in self.agents
            if self._ended_proceed(agent, step) is not None and not self.is_closed(agent, step)
        ]

    def _ended_proceed(self, agent: AgentId, step: Step) -> OneProceed | None:
        """The valid proceed of `step`; None: there is none, or it is in flight."""
        proceed = self.proceeds[agent].get(step)
        return proceed if proceed is not None and proceed.ended else None

    def is_closed(self, agent: AgentId, step: Step) -> bool:
        """Whether the agent's cluster is dispatched and only its resolution is missing."""
        turn = self.turns.get(agent)
        if turn is None or turn.step != step:
            return False
        proceeds = [self._ended_proceed(member, step) for member in turn.agents]
        return all(proceed is not None and proceed.sure for proceed in proceeds)

    def component(
        self, first: AgentId, step: Step, among: Iterable[AgentId]
    ) -> tuple[AgentId, ...]:
        """The cluster of `first` at `step`, as predicted."""
        found, left = [first], set(among) - {first}
        for agent in found:  # the list grows during the iteration
            near = sorted(other for other in left if self.coupled(agent, other, step))
            left.difference_update(near)
            found += near
        return tuple(sorted(found))

    def coupled(self, a: AgentId, b: AgentId, step: Step, *, final: bool = False) -> bool:
        """Whether a and b act in one cluster at `step`."""
        here, there = (self.position(one, step, final=final) for one in (a, b))
        return self._metric.within(here, there, self._radius, 0)

    def position(self, agent: AgentId, step: Step, *, final: bool = False) -> Position:
        """Where the agent stands at the beginning of `step`."""
        body = self.versions.value(self.bodies[agent], step, final=final)
        assert body is not None
        return body.position

    def proceeds_at(self, step: Step) -> list[OneProceed]:
        """The proceeds of `step`, by agent."""
        return [by_step[step] for by_step in self.proceeds if step in by_step]

    def results_at(self, step: Step) -> list[OneResolution]:
        """The results of `step`, by smallest agent."""
        found = (by_step[step] for by_step in self.results if step in by_step)
        return list({one.id: one for one in found}.values())

    def resolving_at(self, step: Step, agents: Iterable[AgentId]) -> list[OneResolution]:
        """The resolutions in flight that have one of `agents` as a member."""
        chosen = set(agents)
        return [
            one
            for one in self.resolving.values()
            if one.step == step and not chosen.isdisjoint(one.members)
        ]

    def open_turns(self) -> list[Dispatch]:
        """The dispatched clusters, by step and smallest agent."""
        return sorted(set(self.turns.values()), key=lambda turn: (turn.step, turn.agents))

    def proceed_in_flight(self, id: ExecutionId) -> OneProceed | None:
        """The proceed `id`; None: it has ended or been aborted."""
        for by_step in self.proceeds:
            for proceed in by_step.values():
                if proceed.id == id and not proceed.ended:
                    return proceed
        return None
