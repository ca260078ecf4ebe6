"""The optimistic replay as a specification: agents run ahead once per step, whatever the risk."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

import metropolis._core as _core
from metropolis.controller.reference import ReferenceController
from metropolis.rules.rules import versioned
from metropolis.runtime.replays.replay import Setting
from metropolis.speculation.base import (
    Abort,
    Answer,
    Command,
    CommitResult,
    Digest,
    Drop,
    Event,
    ExecutionId,
    Observed,
    Proceed,
    Proceeded,
    Promote,
    Question,
    Reads,
    Resolve,
    Resolved,
    Value,
)
from metropolis.speculation.reference import ReferenceSpeculation
from metropolis.trace.schema import Trace
from metropolis.types import AgentId, Position, Step

_SPECULATIVE = 2**32
"""Added to the priority of a request."""


@dataclass
class _Execution:
    step: Step
    agents: tuple[AgentId, ...]
    minds: dict[AgentId, Digest]
    proceeds: tuple[ExecutionId, ...] = ()
    sure: bool = False
    calls: dict[int, int] = field(default_factory=dict)
    """Call -> parents without an answer."""
    open_calls: int = 0
    requests: list[int] = field(default_factory=list)


class OptimisticReference:
    """A replay of `trace` in the mode optimistic; `run` measures it."""

    def __init__(self, trace: Trace, setting: Setting) -> None:
        """The policy is `step`."""
        radii = setting.perception_radius, setting.max_velocity, setting.joint_radius
        rule = versioned(*radii)
        self._trace, self._radius = trace, setting.perception_radius
        starts = [self._position(0, agent) for agent in range(trace.agents)]
        bodies = [f"{agent:03}" for agent in range(trace.agents)]
        controller = ReferenceController(
            rule, setting.metric, setting.max_velocity, starts, trace.steps
        )
        self._speculation = ReferenceSpeculation(
            controller,
            setting.metric,
            rule.couple_radius,
            bodies,
            {body: Value(at, 0) for body, at in zip(bodies, starts, strict=True)},
            [()] * trace.agents,
            trace.steps,
        )
        self._pool = _core.InstancePool(setting.fleet.profiles[0], instances=len(setting.fleet))
        self._offsets = trace.call_offsets()
        self._executions: dict[ExecutionId, _Execution] = {}
        self._final_minds: list[Digest] = [()] * trace.agents
        self._observed: list[tuple[ExecutionId, Reads]] = []
        self._ended: list[ExecutionId] = []
        self._ready: set[tuple[int, ExecutionId]] = set()
        self._requests: dict[int, tuple[ExecutionId, int]] = {}
        self._answered: set[int] = set()
        self._unjudged = set(range(trace.agents))
        """Agents whose next step is another than when they last ran ahead."""
        self._next = [0] * trace.agents
        self._now_sim_s = 0.0
        self._instances = len(setting.fleet)
        self._last_request = 0
        self._promoted: set[tuple[int, ExecutionId]] = set()
        self.promoted_calls = 0
        self.committed_sim_s = np.full(trace.steps * trace.agents, np.nan)

    @property
    def sent_calls(self) -> int:
        """The calls sent; those sent again by promotion count once."""
        return self._last_request - self.promoted_calls

    def run(self) -> None:
        """Run to the end."""
        self._obey(self._speculation.start())
        while not self._speculation.finished:
            self._settle()
            while daring := self._unjudged & set(self._speculation.candidates()):
                self._unjudged -= daring
                self._obey(self._speculation.speculate(sorted(daring)))
                self._settle()
            if not self._speculation.finished:
                self._leap()

    def _settle(self) -> None:
        while self._observed or self._ended:
            events: list[Event] = [
                Observed(id, reads) for id, reads in self._observed if id in self._executions
            ]
            events += [self._end(id) for id in self._ended if id in self._executions]
            self._observed, self._ended = [], []
            self._obey(self._speculation.handle(events))

    def _end(self, id: ExecutionId) -> Event:
        one = self._executions[id]
        if not one.proceeds:
            return Proceeded(id)
        writes: dict[str, Value | None] = {}
        for agent in one.agents:
            there = self._position(one.step + 1, agent)
            writes[f"{agent:03}"] = Value(there, one.step + 1)
            if self._trace.dependencies is not None:
                writes[f"{agent} at {one.step}"] = Value(there, one.minds[agent])
        return Resolved(id, (), writes, (), one.minds)

    def _obey(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Proceed():
                    self._proceed(command)
                case Resolve(id, step, agents, proceeds):
                    minds = {agent: mind for each in proceeds for agent, mind in self._minds(each)}
                    self._executions[id] = _Execution(step, agents, minds, proceeds)
                    self._ended.append(id)
                case Abort(id) | Drop(id):
                    self._end_calls(id)
                case CommitResult(id):
                    self._commit(id)
                case Promote(id):
                    self._promote(id)
                case _:
                    raise AssertionError(command)
        for agent, before in enumerate(self._next):
            self._next[agent] = self._speculation.next_step(agent)
            if self._next[agent] != before:
                self._unjudged.add(agent)

    def _promote(self, id: ExecutionId) -> None:
        """Send the calls again that wait at an instance."""
        one = self._executions[id]
        if one.proceeds or one.sure:
            return
        one.sure = True
        for request in sorted(one.requests, key=lambda r: self._requests[r][1]):
            if any(request in self._pool.progress(i) for i in range(self._instances)):
                continue
            one.requests.remove(request)
            self._pool.abort(request, self._now_sim_s)
            self._ready.add((self._requests[request][1], id))
            self._promoted.add((self._requests[request][1], id))

    def _minds(self, id: ExecutionId) -> list[tuple[AgentId, Digest]]:
        return list(self._executions[id].minds.items())

    def _proceed(self, command: Proceed) -> None:
        agent, step = command.agent, command.step
        mind = (
            self._final_minds[agent]
            if command.mind is None
            else self._executions[command.mind].minds[agent]
        )
        ask = self._speculation._state.versions.answer
        seen: list[tuple[Question, Answer]] = []
        for question in self._questions(step, agent):
            seen.append((question, ask(question, step, final=command.sure)))
        after = (mind, *seen) if seen else mind
        one = _Execution(step, (agent,), {agent: after}, sure=command.sure)
        self._executions[command.id] = one
        self._observed.append((command.id, seen))
        row = step * self._trace.agents + agent
        own = range(self._offsets[row], self._offsets[row + 1])
        one.open_calls = len(own)
        for call in own:
            waits = [p for p in self._parents(call) if p in own or p not in self._answered]
            one.calls[call] = len(waits)
            if not waits:
                self._ready.add((call, command.id))
        if not own:
            self._ended.append(command.id)

    def _questions(self, step: Step, agent: AgentId) -> list[Question]:
        known = self._trace.dependencies
        if known is None:
            here = self._position(step, agent)
            return [Question("entities", centre=here, radius=self._radius)]
        row = step * self._trace.agents + agent
        listed = slice(known.offsets[row], known.offsets[row + 1])
        writers, ago = known.writer[listed].tolist(), known.ago[listed].tolist()
        return [
            Question("entity", f"{writer} at {step - since}")
            for writer, since in zip(writers, ago, strict=True)
        ]

    def _commit(self, id: ExecutionId) -> None:
        one = self._executions.pop(id)
        for agent, proceed in zip(one.agents, one.proceeds, strict=True):
            self._final_minds[agent] = one.minds[agent]
            del self._executions[proceed]
            self.committed_sim_s[one.step * self._trace.agents + agent] = self._now_sim_s

    def _end_calls(self, id: ExecutionId) -> None:
        """The requests of an execution come to nothing, in the order of its calls."""
        one = self._executions.pop(id, None)
        for request in sorted(one.requests if one else (), key=lambda r: self._requests[r][1]):
            self._pool.abort(request, self._now_sim_s)

    def _leap(self) -> None:
        for call, id in sorted(self._ready):
            if id in self._executions:
                self._submit(call, id)
        self._ready.clear()
        until = self._pool.next_event_sim_s()
        assert np.isfinite(until)
        completions = self._pool.advance(until)
        self._now_sim_s = max(self._now_sim_s, until)
        for completion in completions:
            id, call = self._requests[completion.id]
            if id in self._executions and not completion.aborted:
                self._executions[id].requests.remove(completion.id)
                self._complete(id, call)

    def _submit(self, call: int, id: ExecutionId) -> None:
        one, calls = self._executions[id], self._trace.calls
        self._last_request += 1
        self.promoted_calls += (call, id) in self._promoted
        self._requests[self._last_request] = id, call
        one.requests.append(self._last_request)
        priority = one.step + (0 if one.sure else _SPECULATIVE)
        tokens = int(calls.prompt_tokens[call]), int(calls.output_tokens[call])
        self._pool.submit(
            self._last_request, _core.Request(*tokens, priority=priority), self._now_sim_s
        )

    def _complete(self, id: ExecutionId, call: int) -> None:
        one = self._executions[id]
        one.open_calls -= 1
        if not one.open_calls:
            self._ended.append(id)
        is_new = call not in self._answered
        self._answered.add(call)
        for other_id, other in self._executions.items():
            if other_id != id and (not is_new or other.agents == one.agents):
                continue
            for child in other.calls:
                if call in self._parents(child):
                    other.calls[child] -= 1
                    if not other.calls[child]:
                        self._ready.add((child, other_id))

    def _parents(self, call: int) -> list[int]:
        offsets = self._trace.calls.parent_offsets
        return self._trace.calls.parents[offsets[call] : offsets[call + 1]].tolist()

    def _position(self, step: Step, agent: AgentId) -> Position:
        x, y = self._trace.positions[min(step, self._trace.steps - 1), agent].tolist()
        return (x, y)
