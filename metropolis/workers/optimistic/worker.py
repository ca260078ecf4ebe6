"""A worker whose agents run ahead on predictions.

It runs what `metropolis.speculation` commands on a copy of the world: the final values, and beside
them the newest ones, predictions included. The store gets final results only.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from metropolis.llm.base import BudgetExhausted
from metropolis.speculation.base import (
    Abort,
    Command,
    CommitResult,
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
    Resolve,
    Resolved,
    Speculation,
)
from metropolis.types import AgentId, Step
from metropolis.workers.invocations import cancelled_from_within
from metropolis.workers.local import LocalWorker
from metropolis.workers.optimistic.ahead_limit import AheadLimit
from metropolis.workers.optimistic.commits import Commits
from metropolis.workers.optimistic.decisions import Decisions, WorkerLostError
from metropolis.workers.optimistic.executions import Observer, OneProceed, OneResolution
from metropolis.workers.optimistic.joining_client import JoiningClient
from metropolis.workers.optimistic.minds import Mind, Minds
from metropolis.workers.optimistic.world_states import WorldStates
from metropolis.world.base import UNDECIDED, Agent
from metropolis.world.state import State

Work = Callable[[], Coroutine[Any, Any, None]]


class OptimisticWorker:
    """Runs every cluster of the run, and agents ahead of that.

    Final results go to `commits`. Steps of `speculation` count from `states.first_step`.
    """

    def __init__(
        self,
        local: LocalWorker,
        commits: Commits,
        names: Sequence[str],
        speculation: Speculation,
        minds: Minds,
        decisions: Decisions,
        states: WorldStates,
        client: JoiningClient,
        observer: Observer | None = None,
    ) -> None:
        """`names` are those of the agents; `states` and `minds` are as of the run's beginning."""
        self._local, self._commits, self._names, self._observer = local, commits, names, observer
        self._states, self._digests, self._first = states, states.digests, states.first_step
        self._speculation, self._minds, self._decisions = speculation, minds, decisions
        self._client, self._gate, self._ahead = client, client.gate, AheadLimit()
        client.on_orphan = self._settle_soon
        self._proceeds: dict[ExecutionId, OneProceed] = {}
        self._proceed_of: defaultdict[Step, dict[AgentId, ExecutionId]] = defaultdict(dict)
        """Step -> agent -> its last proceed; earlier ones are not valid any more."""
        self._resolutions: dict[ExecutionId, OneResolution] = {}
        self._predictions: dict[ExecutionId, tuple[Step, str]] = {}
        """Prediction in force -> the step and the name of the body that it writes."""
        self._written_at: defaultdict[Step, list[ExecutionId]] = defaultdict(list)
        """Step -> the resolutions and predictions that write it."""
        self._busy: defaultdict[tuple[AgentId, Step], int] = defaultdict(int)
        """(agent, step) -> its executions in flight."""
        self._events: list[Event] = []
        self._advanced: set[AgentId] = set()
        """Agents with new results since the last review of the calls that wait."""
        self._is_settling_soon = self._is_ending = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._floor: Step = 0

    async def run(self) -> None:
        """Run until cancelled or until a final execution fails; `end` follows."""
        self._loop, self._context = asyncio.get_running_loop(), copy_context()
        self._local.track_tasks(self._loop)
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._commits.start(self._end)
        self._decisions.start(self._client, self._end)
        self._obey(self._speculation.start(), [])
        self._settle()
        await self._failure

    async def end(self) -> None:
        """What `run` has begun ends; it has been cancelled, or has failed."""
        self._is_ending = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._decisions.end()
        await self._client.end()
        self._minds.end()

    # --- events

    def _report(self, event: Event) -> None:
        self._events.append(event)
        self._settle_soon()

    def _settle_soon(self) -> None:
        if not self._is_settling_soon:
            self._is_settling_soon = True
            self._loop.call_soon(self._settle, context=self._context.copy())

    def _settle(self) -> None:
        """Report the events, and carry out what follows."""
        self._is_settling_soon = False
        if self._is_ending or self._failure.done():
            return
        try:
            self._handle_events()
        except BaseException as error:  # noqa: BLE001 -- it ends the run
            self._end(error)

    def _handle_events(self) -> None:
        """Handle the events so far; those that follow wait for others on the event loop."""
        events, self._events = self._events, []
        self._obey(self._speculation.handle(events), events)
        if self._events:
            return
        self._gate.review(None if self._collect() else self._advanced)
        self._advanced.clear()
        if agents := self._agents_ahead():
            self._obey(self._speculation.speculate(agents), [])
        self._client.cancel_orphans(lambda agent, step: (agent, step) in self._busy)

    def _end(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    def _agents_ahead(self) -> list[AgentId]:
        """The candidates that may run ahead now."""
        if not self._gate.waste_budget:
            return []
        next_step, limit = self._speculation.next_step, self._floor + self._ahead.steps
        return [agent for agent in self._speculation.candidates() if next_step(agent) < limit]

    def _collect(self) -> bool:
        """Forget what is below the floor. Returns whether the floor has risen."""
        if (floor := self._speculation.floor) == self._floor:
            return False
        for step in range(self._floor, floor):
            for id in self._proceed_of.pop(step, {}).values():
                self._proceeds.pop(id, None)
            for id in self._written_at.pop(step, ()):
                self._resolutions.pop(id, None)
                self._predictions.pop(id, None)
        self._floor = floor
        self._states.collect(self._first + floor)
        self._client.answers.collect(self._first + floor)
        return True

    # --- commands

    def _obey(self, commands: Sequence[Command], events: Sequence[Event]) -> None:
        """Carry out `commands`, which follow from `events`."""
        predictions = [
            (command, self._resolutions[command.source])
            for command in commands
            if isinstance(command, Predict)
        ]
        dropped = {command.id for command in commands if isinstance(command, Drop)}
        for id in dropped:
            self._drop(id)
        for event in events:
            if isinstance(event, Resolved) and event.id in self._resolutions:
                self._put(self._resolutions[event.id])
        for prediction, source in predictions:
            if prediction.id not in dropped:
                self._predict(prediction, source)
        for command in commands:
            if isinstance(command, Abort):
                self._abort(command.id)
            elif isinstance(command, CommitResult):
                self._commit(command)
            elif isinstance(command, Promote):
                self._promote(command.id)
            elif isinstance(command, Proceed):
                self._proceed(command)
            elif isinstance(command, Resolve):
                self._resolve(command)

    def _proceed(self, command: Proceed) -> None:
        number, step = command.agent, self._first + command.step
        if command.mind is None:
            before = self._minds.final[number]
        else:
            before = self._resolutions[command.mind].minds[number]
        agent = self._minds.take(number, before)
        last = self._proceed_of[command.step]
        if number in last and (wrong := self._proceeds.pop(last[number], None)) is not None:
            self._was_wrong(wrong)
        self._ahead.began()
        last[number] = command.id
        log, name = self._local.call_log(), self._names[number]
        llm = self._local.llm(name, step, log, speculative=not command.sure)
        one = OneProceed(command.id, step, number, name, before, llm, command.sure)
        one.began_sure = command.sure
        self._proceeds[one.id] = one
        if self._observer is not None:
            self._observer.began(step, number)
        state = self._states.read_by(sure=command.sure)
        try:
            observation, view = self._local.observe(agent, step, state)
            one.reads, one.observed = view.reads, len(view.reads)
            self._report(Observed(one.id, self._digests.reads(view, sure=command.sure)))
            action = self._local.decide_by_routine(agent, observation)
            if action is UNDECIDED:
                self._start(one, partial(self._decide, one, agent, observation))
            else:
                self._decided(one, action, self._minds.of(number, agent, before.saved))
        except Exception as error:  # noqa: BLE001 -- reported
            self._fail(one, error)

    async def _decide(self, one: OneProceed, agent: Agent, observation: Any) -> None:
        self._decided(one, *await self._decisions.decide(one, agent, observation))

    def _decided(self, one: OneProceed, action: Any, mind: Mind) -> None:
        if one.may_be_misled(self._client):
            self._repeat(one)
            return
        one.decide(action, mind)
        self._report(Proceeded(one.id))

    def _resolve(self, command: Resolve) -> None:
        step = self._first + command.step
        proceeds = [self._proceeds[id] for id in command.proceeds]
        one = OneResolution.of(command.id, step, proceeds, command.sure)
        self._resolutions[one.id] = one
        self._written_at[command.step].append(one.id)
        state = self._states.read_by(sure=command.sure)
        try:
            one.begin(self._local, state, self._minds)
            if one.resolving is None:
                self._resolved(one, state)
            else:
                self._start(one, partial(self._complete, one, state))
        except Exception as error:  # noqa: BLE001 -- reported
            self._fail(one, error)
        if one.task is None:
            one.end()

    async def _complete(self, one: OneResolution, state: State) -> None:
        await one.complete(self._local)
        if one.may_be_misled(self._client):
            self._repeat(one)
        else:
            self._resolved(one, state)

    def _resolved(self, one: OneResolution, state: State) -> None:
        one.collect(self._local, state, self._minds)
        digests, sure = self._digests, state is self._states.final
        reads = [read for member in one.members for read in digests.reads(member, sure=sure)]
        minds = {agent: mind.digest for agent, mind in one.minds.items()}
        writes, events = digests.writes(one.writes), digests.events(one.events)
        forecasts = {
            agent: digests.path(body, path) for agent, (body, path) in one.forecasts.items()
        }
        self._report(Resolved(one.id, reads, writes, events, minds, forecasts))

    def _start(self, one: OneProceed | OneResolution, work: Work) -> None:
        for agent in one.agents:
            self._busy[agent, one.step] += 1
        one.task = self._loop.create_task(self._supervise(one, work))
        self._tasks.add(one.task)
        one.task.add_done_callback(partial(self._ended, one))

    async def _supervise(self, one: OneProceed | OneResolution, work: Work) -> None:
        try:
            await work()
            self._local.check_goes_on()
        except asyncio.CancelledError:
            if not self._is_ending and self._is_current(one):
                self._fail(one, cancelled_from_within(one.step, self._names[one.agents[0]]))
            raise
        except BaseException as error:  # noqa: BLE001 -- reported
            self._fail(one, error)

    def _is_current(self, one: OneProceed | OneResolution) -> bool:
        """Whether the execution was not aborted."""
        return one is self._execution(one.id)

    def _ended(self, one: OneProceed | OneResolution, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        one.log.is_abandoned |= task.cancelled()
        if isinstance(one, OneResolution):
            one.end()
        for agent in one.agents:
            self._busy[agent, one.step] -= 1
            if not self._busy[agent, one.step]:
                del self._busy[agent, one.step]

    def _fail(self, one: OneProceed | OneResolution, error: BaseException) -> None:
        """End the run if the execution was sure; otherwise it is repeated when it is."""
        if not self._is_current(one):
            return  # aborted meanwhile
        if one.may_be_misled(self._client) or isinstance(error, WorkerLostError):
            self._repeat(one)
        elif one.sure or isinstance(error, BudgetExhausted | KeyboardInterrupt):
            self._end(error)
        else:
            self._forget(one)
            self._report(Failed(one.id))

    def _repeat(self, one: OneProceed | OneResolution) -> None:
        """Repeat the execution, once it is sure."""
        if self._is_current(one):
            if one.sure:
                for agent in one.agents:
                    self._client.resend(agent, one.step)
            self._forget(one)
            self._report(Lost(one.id) if one.sure else Failed(one.id))

    def _forget(self, one: OneProceed | OneResolution) -> None:
        one.log.is_abandoned = True
        if isinstance(one, OneResolution):
            del self._resolutions[one.id]
        else:
            del self._proceeds[one.id]
            self._was_wrong(one)

    def _was_wrong(self, one: OneProceed) -> None:
        self._gate.was_wrong(one.number, one.step)
        self._ahead.was_wrong()

    def _execution(self, id: ExecutionId) -> OneProceed | OneResolution | None:
        return self._proceeds.get(id) or self._resolutions.get(id)

    def _abort(self, id: ExecutionId) -> None:
        if (one := self._execution(id)) is not None:
            self._forget(one)
            if one.task is not None:
                one.task.cancel()

    def _put(self, one: OneResolution) -> None:
        self._states.predicted.put(one.step, one.writes, one.events)
        one.is_predicted = True
        self._advanced.update(one.agents)

    def _predict(self, command: Predict, source: OneResolution) -> None:
        body, path = source.forecasts[command.agent]
        step = self._first + command.step
        write = {body.name: body.moved(path[step - source.step - 1])}
        self._states.predicted.put(step, write, ())
        self._predictions[command.id] = step, body.name
        self._advanced.add(command.agent)
        self._written_at[command.step].append(command.id)

    def _drop(self, id: ExecutionId) -> None:
        if id in self._predictions:
            step, name = self._predictions.pop(id)
            self._states.predicted.retract(step, [name], ())
            return
        if (one := self._resolutions.pop(id, None)) is not None and one.is_predicted:
            names = [self._names[agent] for agent in one.agents]
            self._states.predicted.retract(one.step, one.writes, names)

    def _promote(self, id: ExecutionId) -> None:
        if (one := self._proceeds.get(id)) is not None:
            one.promote()
            self._client.promote(one.number, one.step)

    # --- final results

    def _commit(self, command: CommitResult) -> None:
        one = self._resolutions.pop(command.id)
        self._states.final.commit(one.step, one.writes, one.events)
        for agent, mind in one.minds.items():
            self._minds.final[agent] = mind
            functions = [call.function for call in one.log.calls.get(agent, ())]
            requests = self._client.commit(agent, one.step)
            self._gate.commit(agent, one.step, functions, len(requests))
            if self._observer is not None:
                self._observer.requested(one.step, agent, requests)
        self._advanced.update(one.agents)
        minds = {agent: mind.saved for agent, mind in one.minds.items()}
        self._commits.add(one.execution(), minds)
        for proceed in one.proceeds:
            self._proceeds.pop(proceed.id, None)
