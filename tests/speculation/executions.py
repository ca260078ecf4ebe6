"""An executor of speculative executions in virtual time, and lockstep as the truth."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Any

from metropolis.controller.reference import ReferenceController
from metropolis.rules.rules import Rule, versioned
from metropolis.speculation.base import (
    Abort,
    Answer,
    Command,
    CommitResult,
    Drop,
    Emitted,
    Event,
    Failed,
    Lost,
    Observed,
    Predict,
    Proceed,
    Proceeded,
    Promote,
    Question,
    Resolve,
    Resolved,
    Value,
)
from metropolis.speculation.reference import ReferenceSpeculation
from metropolis.world.clusters import clusters
from tests.speculation.worlds import Decision, History, View, World, mix, outcome


class Archive:
    """All results, final or not; answers questions by looking at every one."""

    def __init__(self, world: World) -> None:
        self._metric = world.metric
        self._results: dict[int, tuple[int, Mapping[str, Value | None], Sequence[Emitted]]] = {
            0: (-1, world.entities, ())
        }
        self._final = {0}

    def put(
        self, id: int, step: int, writes: Mapping[str, Value | None], events: Sequence[Emitted]
    ) -> None:
        self._results[id] = step, writes, events

    def drop(self, id: int) -> None:
        assert id not in self._final
        del self._results[id]

    def finalise(self, id: int) -> None:
        self._final.add(id)

    def ask(self, question: Question, step: int, *, final: bool) -> Answer:
        results = [
            (s, writes, events)
            for id, (s, writes, events) in self._results.items()
            if s < step and (id in self._final or not final)
        ]
        if question.kind == "events":
            emitted = [event for s, _, events in results if s == step - 1 for event in events]
            near = [event for event in emitted if self._near(question, event)]
            return tuple(sorted(near, key=lambda event: event.source))
        newest: dict[str, tuple[int, Value | None]] = {}
        for s, writes, _ in results:
            for name, value in writes.items():
                if s >= newest.get(name, (-2,))[0]:
                    newest[name] = s, value
        if question.kind == "entity":
            return newest.get(question.name, (0, None))[1]
        return tuple(
            (name, value)
            for name, (_, value) in sorted(newest.items())
            if value is not None and self._near(question, value)
        )

    def _near(self, question: Question, there: Value | Emitted) -> bool:
        return self._metric.perceives(question.centre, there.position, question.radius)


def lockstep(world: World) -> tuple[History, float]:
    """The history, and the time it takes when every step waits for its slowest call."""
    archive, history, took_s = Archive(world), History(), 0.0
    minds: list[list[Any]] = [[] for _ in world.bodies]
    ids = count(1)
    for step in range(world.steps):
        ask = partial(archive.ask, final=True)
        positions = [View(ask, step, name).position for name in world.bodies]
        resolved, times_s = [], [0.0]
        for cluster in clusters(world.metric, world.cluster_radius, positions):
            decisions = {}
            for agent in cluster:
                view = View(ask, step, world.bodies[agent])
                observation = world.observe(agent, view, step, minds[agent])
                decisions[agent] = world.decide(agent, observation, step, minds[agent])
                times_s.append(service_s(world, decisions[agent].prompt))
            views = {agent: View(ask, step, world.bodies[agent]) for agent in cluster}
            actions = {agent: decisions[agent].action for agent in cluster}
            writes, events = world.resolve(step, actions, views, {a: minds[a] for a in cluster})
            resolved.append((cluster, writes, events))
            done = outcome(cluster, decisions, writes, events, {a: minds[a] for a in cluster})
            history |= {(step, agent): of for agent, of in done.items()}
        for _, writes, events in resolved:
            id = next(ids)
            archive.put(id, step, writes, events)
            archive.finalise(id)
        took_s += max(times_s)
    return history, took_s


def service_s(world: World, prompt: Any) -> float:
    """The time of a call; 0 without one."""
    if prompt is None:
        return 0.0
    return 0.5 + 6 * (mix("service", world.seed, prompt[1], prompt[2]) % 1000 / 1000) ** 4


@dataclass
class Executed:
    """An execution in flight or ended: what it has made."""

    command: Proceed | Resolve | Predict
    mind: dict[int, list[Any]]
    decisions: Mapping[int, Decision]
    writes: Mapping[str, Value | None]
    events: Sequence[Emitted]
    forecasts: Mapping[int, Sequence[Value]] = field(default_factory=dict)


def rule_of(world: World) -> Rule:
    """The rule of the commit stage."""
    return versioned(world.perception_radius, world.max_velocity, world.joint_radius)


MakeSpeculation = Callable[..., ReferenceSpeculation]


class OptimisticRun:
    """Runs a world speculatively; all choices that do not matter are random."""

    def __init__(
        self,
        world: World,
        seed: int = 0,
        *,
        risk: float = 0.9,
        faults: float = 0.05,
        jitter_s: float = 1.0,
        make: MakeSpeculation = ReferenceSpeculation,
        make_rule: Callable[[World], Rule] = rule_of,
        view: Callable[..., View] = View,
        archive: type[Archive] = Archive,
        copies_minds: bool = True,
        validates: bool = True,
    ) -> None:
        self._world, self._random = world, Random(seed)
        self._risk, self._faults, self._jitter_s = risk, faults, jitter_s
        self._view, self._copies, self._validates = view, copies_minds, validates
        rule = make_rule(world)
        starts = [world.entities[name].position for name in world.bodies]
        controller = ReferenceController(
            rule, world.metric, world.max_velocity, starts, world.steps
        )
        self.speculation = make(
            controller,
            world.metric,
            world.cluster_radius,
            world.bodies,
            world.entities,
            [() for _ in world.bodies],
            world.steps,
        )
        self._archive = archive(world)
        self._final_minds: list[list[Any]] = [[] for _ in world.bodies]
        self._executed: dict[int, Executed] = {}
        self._sure: set[int] = set()
        self._queue: list[tuple[float, int, Event]] = []
        self._numbers = count()
        self._slow_s = [self._random.choice([0.1, 1, 8, 30]) for _ in world.bodies]
        self._memo: dict[Any, float] = {}
        self.now_s = 0.0
        self.history: History = {}
        self.counts: Counter[str] = Counter()

    def run(self) -> History:
        speculation = self.speculation
        self._obey(speculation.start())
        limit = 400 * self._world.agents * self._world.steps
        while not speculation.finished:
            daring = [a for a in speculation.candidates() if self._random.random() < self._risk]
            self._obey(speculation.speculate(daring))
            self.now_s, _, event = heapq.heappop(self._queue)
            events = [event]
            while self._queue and self._queue[0][0] == self.now_s and self._random.random() < 0.5:
                events.append(heapq.heappop(self._queue)[2])
            self._obey(speculation.handle([self._disturbed(each) for each in events]))
            if self._validates:
                speculation.validate()
            limit -= 1
            assert limit, f"{self._world}: no progress"
        return self.history

    def _disturbed(self, event: Event) -> Event:
        if isinstance(event, Observed) or self._random.random() >= self._faults:
            if isinstance(event, Resolved):
                self._results_arrived(event)
            return event
        if event.id not in self._sure and self._random.random() < 0.5:
            return Failed(event.id)
        return Lost(event.id)

    def _results_arrived(self, event: Resolved) -> None:
        if event.id in self._executed:
            one = self._executed[event.id]
            self._archive.put(event.id, one.command.step, one.writes, one.events)

    def _obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self.counts[type(command).__name__] += 1
            if isinstance(command, Abort):
                self._executed.pop(command.id, None)
            elif isinstance(command, Drop):
                self._archive.drop(command.id)
                del self._executed[command.id]
            elif isinstance(command, CommitResult):
                self._commit(command)
            elif isinstance(command, Promote):
                self._sure.add(command.id)
            elif isinstance(command, Proceed):
                self._proceed(command)
            elif isinstance(command, Predict):
                self._predict(command)
            else:
                self._resolve(command)

    def _proceed(self, command: Proceed) -> None:
        world, agent, step = self._world, command.agent, command.step
        if command.sure:
            self._sure.add(command.id)
        source = (
            self._final_minds[agent]
            if command.mind is None
            else self._executed[command.mind].mind[agent]
        )
        mind = list(source) if self._copies else source
        view = self._view(self._asking(command.sure), step, world.bodies[agent])
        observation = world.observe(agent, view, step, mind)
        decision = world.decide(agent, observation, step, mind)
        self._executed[command.id] = Executed(command, {agent: mind}, {agent: decision}, {}, ())
        self._push(0.0, Observed(command.id, view.reads))
        took_s = service_s(world, decision.prompt)
        if decision.prompt is not None:
            self.counts["calls"] += decision.prompt not in self._memo
            answered_s = self._memo.setdefault(decision.prompt, self.now_s + took_s)
            took_s = max(0.0, answered_s - self.now_s)
        took_s += self._random.random() * self._jitter_s * self._slow_s[agent]
        self._push(took_s, Proceeded(command.id))

    def _resolve(self, command: Resolve) -> None:
        world, step = self._world, command.step
        if command.sure:
            self._sure.add(command.id)
        proceeds = [self._executed[id] for id in command.proceeds]
        minds = {
            agent: list(one.mind[agent]) if self._copies else one.mind[agent]
            for agent, one in zip(command.agents, proceeds, strict=True)
        }
        decisions = {a: d for one in proceeds for a, d in one.decisions.items()}
        views = {
            agent: self._view(self._asking(command.sure), step, world.bodies[agent])
            for agent in command.agents
        }
        actions = {agent: decisions[agent].action for agent in command.agents}
        writes, events = world.resolve(step, actions, views, minds)
        forecasts = {
            agent: self._forecast(writes.get(view.name) or view.me)
            for agent, view in views.items()
            if self._random.random() < 0.5
        }
        self._executed[command.id] = Executed(command, minds, decisions, writes, events, forecasts)
        asked = [read for view in views.values() for read in view.reads]
        after = {agent: tuple(mind) for agent, mind in minds.items()}
        delay_s = self._random.choice([0.0, 0.0, 0.0, 1.0, 20.0]) * self._jitter_s
        self._push(delay_s, Resolved(command.id, asked, writes, events, after, forecasts))

    def _forecast(self, body: Value) -> list[Value]:
        """A walk in one direction, which may be wrong."""
        move = self._random.choice([(0, 0), (1, 0), (-1, 0), (0, 1), (3, 3)])
        digest = body.digest if self._random.random() < 0.9 else 1
        path = [Value(self._world.inside(body.position, move), digest)]
        while self._random.random() < 0.7:
            path.append(Value(self._world.inside(path[-1].position, move), digest))
        return path[self._random.random() < 0.1 :]

    def _predict(self, command: Predict) -> None:
        source = self._executed[command.source]
        step, name = source.command.step, self._world.bodies[command.agent]
        value = source.forecasts[command.agent][command.step - step - 1]
        self._executed[command.id] = Executed(command, {}, {}, {name: value}, ())
        self._archive.put(command.id, command.step, {name: value}, ())

    def _commit(self, command: CommitResult) -> None:
        one = self._executed[command.id]
        self._archive.finalise(command.id)
        done = outcome(command.agents, one.decisions, one.writes, one.events, one.mind)
        for agent, of in done.items():
            assert (command.step, agent) not in self.history
            self.history[command.step, agent] = of
            self._final_minds[agent] = one.mind[agent]

    def _asking(self, sure: bool) -> Callable[[Question, int], Answer]:
        return partial(self._archive.ask, final=sure)

    def _push(self, after_s: float, event: Event) -> None:
        heapq.heappush(self._queue, (self.now_s + after_s, next(self._numbers), event))
