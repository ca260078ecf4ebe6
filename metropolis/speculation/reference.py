"""Speculation as a specification: brute force over all executions after every event.

Whatever loses validity is repeated. Its writes remain as predictions until the repetition replaces
them: often it writes the same, and later executions stay valid. A cluster that the controller
dispatches commits a result of exactly its members that is final. If there is none, its executions
are repeated on final versions only: they are *sure*, since nothing can change their inputs. So a
wrong prediction delays no commit beyond that of the controller alone, except for its own cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from metropolis.controller.base import Controller, InvariantError
from metropolis.controller.reference import format_agents
from metropolis.rules.metrics import Metric
from metropolis.speculation.base import (
    Abort,
    Command,
    CommitResult,
    Digest,
    Drop,
    Event,
    ExecutionId,
    Failed,
    Lost,
    Observed,
    Predict,
    Proceed,
    Proceeded,
    Promote,
    Reads,
    Resolve,
    Resolved,
    Value,
)
from metropolis.speculation.executions import Executions, OneProceed, OneResolution
from metropolis.speculation.versions import Result
from metropolis.types import AgentId, Commit, Dispatch, MetropolisError, Step


class ReferenceSpeculation:
    """See `metropolis.speculation.base.Speculation`."""

    make_executions: type[Executions] = Executions

    def __init__(
        self,
        controller: Controller,
        metric: Metric,
        cluster_radius: float,
        bodies: Sequence[str],
        entities: Mapping[str, Value],
        minds: Sequence[Digest],
        target_step: Step,
    ) -> None:
        """`entities` exist at step 0, among them the body `bodies[i]` of each agent i.

        `controller` has not started. Two agents within `cluster_radius` act in one cluster.
        """
        self._controller, self._target = controller, target_step
        self._state = self.make_executions(metric, cluster_radius, bodies, entities, minds)
        self._committed: list[OneResolution] = []
        """Committed resolutions above the floor, for `validate`."""
        self._last_id: ExecutionId = 0
        self._commands: list[Command] = []

    def start(self) -> list[Command]:
        """See `Speculation.start`."""
        turns = self._controller.start()
        first = [agent for turn in turns if turn.step == 0 for agent in turn.agents]
        if self._target and len(first) != len(self._state.agents):
            raise MetropolisError("the controller does not begin with all agents at step 0")
        self._add_turns(turns)
        return self._settle()

    def handle(self, events: Sequence[Event]) -> list[Command]:
        """See `Speculation.handle`."""
        for event in events:
            self._apply(event)
        return self._settle()

    def candidates(self) -> list[AgentId]:
        """See `Speculation.candidates`."""
        return [one for one in self._state.agents if self._state.may_speculate(one, self._target)]

    def next_step(self, agent: AgentId) -> Step:
        """See `Speculation.next_step`."""
        return self._state.next(agent)

    def speculate(self, agents: Sequence[AgentId]) -> list[Command]:
        """See `Speculation.speculate`."""
        candidates = self.candidates()
        for agent in agents:
            if agent not in candidates:
                raise MetropolisError(f"agent {agent} is not a candidate for speculation")
        if len(set(agents)) != len(agents):
            raise MetropolisError(f"an agent is named twice: {format_agents(agents)}")
        for step, agent in sorted((self._state.next(agent), agent) for agent in agents):
            self._proceed(agent, step, sure=False)
        return self._take_commands()

    @property
    def floor(self) -> Step:
        """See `Speculation.floor`."""
        return min(self._state.final, default=self._target)

    @property
    def finished(self) -> bool:
        """See `Speculation.finished`."""
        return self.floor == self._target

    def validate(self) -> None:
        """See `Speculation.validate`."""
        state = self._state
        self._controller.validate()
        writers = list(state.versions.writers())
        if len(set(writers)) != len(writers):
            raise InvariantError("two results write the same entity at the same step")
        for proceed in (one for at in state.proceeds for one in at.values()):
            if not state.is_valid(proceed):
                raise InvariantError(f"the execution {proceed.id} is not valid")
            if proceed.sure and proceed.reads is not None and not state.is_final(proceed):
                raise InvariantError(f"the sure execution {proceed.id} has read what is not final")
        for resolution in (one for at in state.results for one in at.values()):
            if resolution.valid and not state.is_valid_resolution(resolution):
                raise InvariantError(f"the result of the execution {resolution.id} is not valid")
        for resolution in self._committed:
            reads = [resolution.reads, *(each.reads or () for each in resolution.proceeds)]
            if not all(state.holds(each, resolution.step, final=True) for each in reads):
                raise InvariantError(f"the result of the execution {resolution.id} was not final")

    def _check_sure(self, execution: OneProceed | OneResolution, reads: Reads) -> None:
        if execution.sure and not self._state.holds(reads, execution.step, final=True):
            raise MetropolisError(
                f"the execution {execution.id} is sure, and has not read the final versions"
            )

    def _check_id(self, id: ExecutionId) -> None:
        if not 1 <= id <= self._last_id:
            raise MetropolisError(f"there is no execution {id}")

    def _apply(self, event: Event) -> None:
        self._check_id(event.id)
        proceed = self._state.proceed_in_flight(event.id)
        resolution = self._state.resolving.get(event.id)
        if proceed is None and resolution is None:
            return
        if isinstance(event, Lost | Failed):
            self._lose(event, proceed, resolution)
        elif isinstance(event, Resolved) and resolution is not None:
            self._put(resolution, event)
        elif isinstance(event, Observed) and proceed is not None:
            if proceed.reads is not None:
                raise MetropolisError(f"the execution {event.id} has observed before")
            self._check_sure(proceed, event.reads)
            proceed.reads = tuple(event.reads)
        elif isinstance(event, Proceeded) and proceed is not None and proceed.reads is not None:
            proceed.ended = True
        else:
            raise MetropolisError(f"{type(event).__name__} does not fit the execution {event.id}")

    def _put(self, resolution: OneResolution, event: Resolved) -> None:
        """Add a result, in place of those of the same step with a common member or write."""
        step, members = resolution.step, resolution.members
        if sorted(event.minds) != list(members):
            raise MetropolisError(
                f"the execution {event.id} has the minds of "
                f"{format_agents(sorted(event.minds)) or 'nobody'}; "
                f"it needs those of {format_agents(members)}"
            )
        for agent, body in enumerate(self._state.bodies):
            if event.writes.get(body, event) is None:
                raise MetropolisError(f"the execution {event.id} removes the body of agent {agent}")
            if resolution.sure and body in event.writes and agent not in members:
                raise MetropolisError(
                    f"the execution {event.id} moves the body of agent {agent}, which is no member"
                )
        self._check_sure(resolution, event.reads)
        if self._state.versions.is_final(event.writes, step):
            self._refuse(resolution)
            return
        for other in self._state.results_at(step):
            if set(other.members) & set(members) or other.writes.keys() & event.writes.keys():
                self._drop(other)
        del self._state.resolving[event.id]
        resolution.reads, resolution.minds = tuple(event.reads), dict(event.minds)
        resolution.result = Result(event.id, step, dict(event.writes), tuple(event.events))
        self._state.versions.put(resolution.result)
        for agent in members:
            self._state.results[agent][step] = resolution
        for agent, forecast in sorted(event.forecasts.items()):
            self._predict(resolution, agent, forecast)

    def _refuse(self, resolution: OneResolution) -> None:
        """Drop a result that writes what a committed result of the same step has written.

        Its members were there only in predictions, which are being replaced.
        """
        if resolution.sure:
            raise MetropolisError(
                f"the execution {resolution.id} writes an entity that a committed result of step "
                f"{resolution.step} has written"
            )
        self._hold(resolution)
        del self._state.resolving[resolution.id]
        self._commands.append(Drop(resolution.id))

    def _predict(self, source: OneResolution, agent: AgentId, forecast: Sequence[Value]) -> None:
        """Let others see what a member expects of its body, in steps without a result."""
        body, results = self._state.bodies[agent], self._state.results[agent]
        later = range(source.step + 1, self._target)
        for step, value in zip(later, forecast, strict=False):
            known = results.get(step)
            if known is not None:
                if known.forecast_of is None or known.writes[body] == value:
                    continue
                self._drop(known)
            if any(body in other.writes for other in self._state.results_at(step)):
                continue
            one = OneResolution(self._new_id(), step, (), sure=False, valid=False)
            one.forecast_of, one.result = agent, Result(one.id, step, {body: value}, ())
            self._state.versions.put(one.result)
            results[step] = one
            self._commands.append(Predict(one.id, step, agent, source.id))
        for step in sorted(results):
            if step > source.step + len(forecast) and results[step].forecast_of is not None:
                self._drop(results[step])

    def _lose(
        self, event: Lost | Failed, proceed: OneProceed | None, resolution: OneResolution | None
    ) -> None:
        execution: OneProceed | OneResolution | None = proceed or resolution
        assert execution is not None
        if isinstance(event, Failed):
            if execution.sure:
                raise MetropolisError(f"the execution {event.id} is sure: its error ends the run")
            self._hold(execution)
        if proceed is not None:
            del self._state.proceeds[proceed.agent][proceed.step]
        else:
            del self._state.resolving[event.id]

    def _hold(self, execution: OneProceed | OneResolution) -> None:
        """Let its members wait with this step until it is sure."""
        self._state.held |= {(agent, execution.step) for agent in execution.members}

    def _settle(self) -> list[Command]:
        """Retract, commit and repeat until nothing changes."""
        while True:
            self._stop_what_is_not_final()
            self._retract()
            if not self._commit_turns():
                break
        self._state.versions.collect(self.floor)
        self._committed = [one for one in self._committed if one.step >= self.floor]
        self._dispatch_turns()
        self._resolve_speculatively()
        return self._take_commands()

    def _stop_what_is_not_final(self) -> None:
        """Stop the proceeds of dispatched clusters that have read wrong predictions."""
        for turn in self._state.open_turns():
            for agent in turn.agents:
                proceed = self._state.proceeds[agent].get(turn.step)
                if proceed and proceed.reads is not None and not self._state.is_final(proceed):
                    self._stop(proceed)

    def _retract(self) -> None:
        """Stop the proceeds and mark the resolutions that are not valid, lowest step first."""
        state = self._state
        steps = {step for table in (state.proceeds, state.results) for at in table for step in at}
        for step in sorted(steps):
            for proceed in state.proceeds_at(step):
                if not state.is_valid(proceed):
                    self._stop(proceed)
            for resolution in state.results_at(step) + state.resolving_at(step, state.agents):
                if resolution.valid and not state.is_valid_resolution(resolution):
                    resolution.valid = False
                    self._abort(resolution)
        for agent in state.agents:
            first = state.first_unproceeded(agent)
            for later in [one for step, one in state.proceeds[agent].items() if step > first]:
                if not later.ended:  # the mind that it began with is being replaced
                    self._stop(later)

    def _commit_turns(self) -> bool:
        """Commit the results of dispatched clusters that are final; whether there was one."""
        ready = []
        for turn in self._state.open_turns():
            result = self._state.results[turn.agents[0]].get(turn.step)
            if result is not None and self._state.may_commit(turn, result):
                ready.append(result)
        for result in ready:
            self._commit(result)
        return bool(ready)

    def _commit(self, resolution: OneResolution) -> None:
        state, step, members = self._state, resolution.step, resolution.members
        assert resolution.result is not None
        state.versions.finalise(resolution.result)
        self._committed.append(resolution)
        self._commands.append(CommitResult(resolution.id, step, members))
        for other in state.resolving_at(step, members):
            self._abort(other)
        for agent in members:
            state.final[agent] = step + 1
            state.final_minds[agent] = resolution.minds[agent]
            current = state.proceeds[agent].get(step)
            if current is not None:
                self._stop(current)
            del state.results[agent][step], state.turns[agent]
            state.held.discard((agent, step))
        for other_agent in state.agents:
            if other_agent in members or state.final[other_agent] <= step:
                continue
            if any(state.coupled(agent, other_agent, step, final=True) for agent in members):
                raise InvariantError(f"step {step}: {members} committed without {other_agent}")
        positions = tuple([state.position(agent, step + 1, final=True) for agent in members])
        self._add_turns(self._controller.handle([Commit(members, positions)]))

    def _dispatch_turns(self) -> None:
        """Let the dispatched clusters proceed, and resolve those whose members have proceeded."""
        for turn in self._state.open_turns():
            step = turn.step
            for agent in turn.agents:
                proceed = self._state.proceeds[agent].get(step)
                if proceed is None:
                    self._proceed(agent, step, sure=True)
                elif proceed.reads is not None and not proceed.sure:
                    proceed.sure = True
                    if not proceed.ended:
                        self._commands.append(Promote(proceed.id))
            if not self._state.is_closed(turn.agents[0], step):
                continue
            overlapping = self._state.resolving_at(step, turn.agents)
            if not any(one.sure for one in overlapping):
                for one in overlapping:
                    self._abort(one)
                self._resolve(turn.agents, step, sure=True)

    def _resolve_speculatively(self) -> None:
        for agent in self._state.agents:
            step = self._state.next(agent)
            eligible = self._state.eligible(step)
            if agent in eligible and not self._state.resolving_at(step, [agent]):
                cluster = self._state.component(agent, step, eligible)
                if not any((member, step) in self._state.held for member in cluster):
                    self._resolve(cluster, step, sure=False)

    def _proceed(self, agent: AgentId, step: Step, *, sure: bool) -> None:
        mind = self._state.mind_before(agent, step)
        assert mind is not None
        digest, source = mind
        proceed = OneProceed(self._new_id(), agent, step, digest, sure)
        self._state.proceeds[agent][step] = proceed
        self._commands.append(Proceed(proceed.id, step, agent, source, sure))

    def _resolve(self, agents: Sequence[AgentId], step: Step, *, sure: bool) -> None:
        proceeds = tuple([self._state.proceeds[agent][step] for agent in agents])
        resolution = OneResolution(self._new_id(), step, proceeds, sure)
        self._state.resolving[resolution.id] = resolution
        ids = tuple([one.id for one in proceeds])
        self._commands.append(Resolve(resolution.id, step, resolution.members, ids, sure))

    def _stop(self, proceed: OneProceed) -> None:
        del self._state.proceeds[proceed.agent][proceed.step]
        if not proceed.ended:
            self._commands.append(Abort(proceed.id))

    def _abort(self, resolution: OneResolution) -> None:
        """End a resolution if it is in flight."""
        if self._state.resolving.pop(resolution.id, None) is not None:
            self._commands.append(Abort(resolution.id))

    def _drop(self, resolution: OneResolution) -> None:
        """Remove a result that is not final."""
        self._commands.append(Drop(resolution.id))
        assert resolution.result is not None
        self._state.versions.drop(resolution.result)
        for agent in resolution.members:
            del self._state.results[agent][resolution.step]

    def _add_turns(self, dispatches: Iterable[Dispatch]) -> None:
        for turn in dispatches:
            self._state.turns.update(dict.fromkeys(turn.agents, turn))

    def _new_id(self) -> ExecutionId:
        self._last_id += 1
        return self._last_id

    def _take_commands(self) -> list[Command]:
        commands, self._commands = self._commands, []
        return commands
