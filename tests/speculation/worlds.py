"""Small random worlds of adversaries: any slip in what an execution may rely on changes history.

Agents chase, flee, oscillate at the edge of each other's sight, write values and take them back,
move and take things, meet by surprise, pass on news, and talk. They change their minds in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Any

from metropolis.rules.metrics import CHEBYSHEV, EUCLIDEAN, MANHATTAN, Metric
from metropolis.speculation.base import Answer, Emitted, Question, Value
from metropolis.types import Position

KINDS = ("idle", "chase", "flee", "oscillate", "take back", "jump", "news", "thief")
Ask = Callable[[Question, int], Answer]
"""(question, step) -> its answer."""


def mix(*parts: Any) -> int:
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=6).digest(), "big")


class View:
    """What one member asks of the world, and the answers."""

    def __init__(self, ask: Ask, step: int, name: str) -> None:
        self._ask, self._step, self.name = ask, step, name
        self.reads: list[tuple[Question, Answer]] = []
        self.me: Value = self._read(Question("entity", name))
        self.position = self.me.position

    def entities(self, radius: float) -> Any:
        return self._read(Question("entities", "", self.position, radius))

    def events(self, radius: float) -> Any:
        return self._read(Question("events", "", self.position, radius))

    def _read(self, question: Question) -> Any:
        answer = self._ask(question, self._step)
        self.reads.append((question, answer))
        return answer


@dataclass(frozen=True)
class Decision:
    """What an agent intends, what it saw, and the prompt it called its model with."""

    observation: Any
    action: Mapping[str, Any]
    prompt: Any


class World:
    def __init__(self, seed: int) -> None:
        self.seed, random = seed, Random(seed)
        self.agents, self.steps = random.randint(2, 6), random.randint(3, 12)
        self.metric: Metric = random.choice([CHEBYSHEV, CHEBYSHEV, MANHATTAN, EUCLIDEAN])
        self.max_velocity, self.perception_radius = random.choice([1, 1, 2]), random.randint(1, 4)
        r, v = self.perception_radius, self.max_velocity
        self.joint_radius = random.choice([0, min(2, r), max(r, 2 * v)])
        self.cluster_radius = max(2 * v, self.joint_radius)
        width = random.choice([6, 10, 16, 30])
        self.size = width, random.choice([1, 4, 8, 16, width])
        self.bodies = [f"a{i}" for i in range(self.agents)]
        self._kinds = [random.choice(KINDS) for _ in self.bodies]
        self._notes = [random.choice(["all", "who", "news", "count"]) for _ in self.bodies]
        self._gazes = [min(r, random.choice([0, 1, 9])) for _ in self.bodies]

        def place() -> Position:
            return random.randrange(self.size[0]), random.randrange(self.size[1])

        self.entities = {name: Value(place(), 0) for name in self.bodies}
        self.entities |= {f"t{i}": Value(place(), i) for i in range(random.randint(0, 7))}

    def __str__(self) -> str:
        return f"world of seed {self.seed}: {self.agents} agents, {self.steps} steps"

    def observe(self, agent: int, view: View, step: int, mind: list[Any]) -> Any:
        """The observation and the prompt (None: no call); may change `mind`."""
        near = [(n, v) for n, v in view.entities(self._gazes[agent]) if n != view.name]
        news = view.events(self.perception_radius)
        note = {
            "all": mix(near, news, view.me),
            "who": mix([name for name, _ in near], len(news)),
            "news": mix(news) if news else 0,
            "count": sum(name.startswith("a") for name, _ in near),
        }[self._notes[agent]]
        changed = not mind or mind[-1] != note
        if changed:
            mind.append(note)
        calls = (changed and note) or mix(self.seed, agent, step) % 5 == 0
        prompt = ("call", agent, step, note, tuple(mind[-3:])) if calls else None
        return near, news, view.position, prompt

    def decide(self, agent: int, observation: Any, step: int, mind: list[Any]) -> Decision:
        """The decision after the model's answer; may change `mind`."""
        near, news, position, prompt = observation
        draw, kind, v = mix(self.seed, agent, step, prompt), self._kinds[agent], self.max_velocity
        action: dict[str, Any] = {"go": (0, 0), "write": draw % 2, "talk": draw // 7 % 3 == 0}
        others = [value.position for name, value in near if name.startswith("a")]
        if kind in ("chase", "flee") and others:
            target = min(others, key=lambda p: abs(p[0] - position[0]) + abs(p[1] - position[1]))
            sign = 1 if kind == "chase" else -1
            action["go"] = tuple(
                sign * max(-1, min(1, t - here)) for t, here in zip(target, position, strict=True)
            )
        if kind == "oscillate":
            action["go"] = v if step % 2 else -v, 0
        if kind == "take back":
            action["state"], action["toggle"] = step % 2, step % 3 == 0
        if kind == "jump" and prompt:
            action["go"] = draw % (2 * v + 1) - v, 0
        if kind == "news" and (news or draw % 8 == 0):
            action["emit"] = draw // 64 % (2 * v + 1) - v, mix(news) % 1000
        if kind == "thief":
            action["take"], action["go"] = draw % 3, (draw // 99 % 3 - 1, 0)
        if kind == "idle" and prompt and draw % 4 == 0:
            action["state"] = draw % 3
        if kind in ("jump", "thief", "oscillate"):
            action["count"] = draw % 2
        if prompt and draw % 11 == 0:
            mind.append(("thought", step))
        return Decision(observation, action, prompt)

    def resolve(
        self,
        step: int,
        actions: Mapping[int, Mapping[str, Any]],
        views: Mapping[int, View],
        minds: Mapping[int, list[Any]],
    ) -> tuple[dict[str, Value | None], list[Emitted]]:
        """Apply the actions in order, each on what those before have written; may change minds."""
        writes: dict[str, Value | None] = {}
        events: list[Emitted] = []
        for agent in sorted(actions):
            action, view = actions[agent], views[agent]
            position, state = view.me
            to = self.inside(position, action["go"])
            if any((w := writes.get(self.bodies[b])) and w.position == to for b in actions):
                to = position
            value = Value(to, action.get("state", state))
            for other in sorted(actions):
                both = other != agent and action["talk"] and actions[other]["talk"]
                there = views[other].position
                if both and self.metric.perceives(view.position, there, self.joint_radius):
                    minds[other].append(("heard", agent, step))
                    value = Value(to, mix(value, other) % 9)
            if action.get("count"):
                value = Value(to, len(view.entities(self.perception_radius)) % 5)
            if value != view.me or action["write"]:
                writes[view.name] = value
            if "take" in action or action.get("toggle"):
                self._handle_things(step, action, view, writes)
            if "emit" in action:
                dx, news = action["emit"]
                events.append(Emitted(view.name, self.inside(position, (dx, 0)), news))
        return writes, events

    def _handle_things(
        self,
        step: int,
        action: Mapping[str, Any],
        view: View,
        writes: dict[str, Value | None],
    ) -> None:
        known: dict[str, Value | None] = dict(view.entities(self.perception_radius))
        radius = min(self.perception_radius, self.max_velocity)
        things = {
            name: value
            for name, value in sorted({**known, **writes}.items())
            if value is not None
            and not name.startswith("a")
            and self.metric.perceives(view.position, value.position, radius)
        }
        for name, (place, state) in list(things.items())[:1]:
            if action.get("toggle"):
                writes[name] = Value(place, 1 - state if state in (0, 1) else state % 2)
            elif action["take"] == 0:
                writes[name] = None
            else:
                writes[name] = Value(self.inside(view.position, (1, 0)), state)
        if not things and action.get("take") == 2:
            writes[f"t/{view.name}/{step}"] = Value(view.position, step % 2)

    def inside(self, position: Position, move: Sequence[float]) -> Position:
        """Where a body is that would move by `move`."""
        v = self.max_velocity
        dx, dy = (max(-v, min(v, d)) for d in move)
        if self.metric is not CHEBYSHEV and dx:
            dy = 0
        x, y = position[0] + dx, position[1] + dy
        return min(max(x, 0), self.size[0] - 1), min(max(y, 0), self.size[1] - 1)


History = dict[tuple[int, int], Any]
"""(step, agent) -> the cluster, what was seen, decided and written, and the mind afterwards."""


def outcome(
    members: Sequence[int],
    decisions: Mapping[int, Decision],
    writes: Mapping[str, Value | None],
    events: Sequence[Emitted],
    minds: Mapping[int, Sequence[Any]],
) -> dict[int, Any]:
    """What history holds of a cluster's step, by agent."""
    wrote = tuple(sorted(writes.items())), tuple(events)
    return {
        agent: (tuple(members), decisions[agent], wrote, tuple(minds[agent])) for agent in members
    }
