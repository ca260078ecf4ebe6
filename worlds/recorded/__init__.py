"""The agents of a trace, who move as recorded and send calls as long as the recorded ones.

So a trace, of any origin, measures a real engine in every mode of a run. A prompt is the recorded
text, or consists of words that most vocabularies have as one token; an answer goes on to its
recorded length. A prompt depends on whom the agent sees, so a step that ran ahead on a wrong
prediction sends other calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from random import Random
from string import ascii_lowercase
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, Sequence

from metropolis import UNDECIDED, Agent, Entity, FreeText, MetropolisError, Scenario, World
from metropolis.rules.metrics import metric_named
from metropolis.trace.parquet import read_trace
from metropolis.trace.schema import Trace
from metropolis.trace.validate import rounded_velocity

_TEXT = (
    "the of and to in is it for on was with as that this from have not they are be at by one all "
    "some time down way work new good day man life year back over hand part make take come go see "
    "know look use find give tell ask try call need feel last long same old big high next home "
    "room side line city name five"
)
WORDS = _TEXT.split()
"""Of at most four letters, which `approximate_tokens` counts as one token, too."""


class Calls:
    """The calls of a trace, by agent-step. Copies of agents share it, since nothing changes it."""

    def __init__(self, trace: Trace, *, is_chat: bool, has_texts: bool) -> None:
        """`is_chat`: send chats, to which engines add the tokens of a template, not prompts.

        `has_texts`: the prompts are those of the trace, where it has them.
        """
        self._calls, self._agents, self._is_chat = trace.calls, trace.agents, is_chat
        self._texts = trace.calls.prompt if has_texts else None
        self._offsets = trace.call_offsets()
        self._joint = _joint(trace)
        """The agent-steps whose agents act together."""

    def __deepcopy__(self, _memo: object) -> Calls:
        return self

    def of(self, step: int, agent: int, *, joint: bool) -> range:
        """The calls of an agent-step; none unless `joint` tells if agents act together."""
        row = step * self._agents + agent
        if row >= len(self._offsets) - 1:
            steps = (len(self._offsets) - 1) // self._agents
            raise MetropolisError(
                f"the trace ends after {steps:,} steps; --steps should be at most that"
            )
        if (row in self._joint) is not joint:
            return range(0)
        return range(self._offsets[row], self._offsets[row + 1])

    async def send(self, call: int, llm: Any, seen: Iterable[str] = ()) -> None:
        """Send a call as long as the recorded one."""
        calls = self._calls
        ask = llm.chat if self._is_chat else llm.complete
        await ask(
            self._prompt(call, [*seen]),
            function=calls.functions[calls.function[call]],
            max_tokens=int(calls.output_tokens[call]),
            ignore_eos=True,
        )

    def _prompt(self, call: int, seen: list[str]) -> str:
        if self._texts is not None and (text := self._texts[call]):
            return _marked(text, seen)
        calls = self._calls
        tokens, shared = int(calls.prompt_tokens[call]), int(calls.prefix_tokens[call])
        words = _words(f"prefix {calls.prefix_id[call]}", shared)
        return " ".join(words + _words(f"call {call} {seen}", tokens - shared))

    async def in_order(
        self, calls: Iterable[int], send: Callable[[int], Coroutine[Any, Any, None]]
    ) -> None:
        """`send` each of `calls` once those that it waited for have been answered."""
        tasks: dict[int, asyncio.Task[None]] = {}

        async def one(call: int) -> None:
            first, last = self._calls.parent_offsets[call : call + 2]
            for parent in self._calls.parents[first:last].tolist():
                if parent not in tasks:
                    raise MetropolisError(
                        f"step {self._calls.step[call]}: a call of agent {self._calls.agent[call]} "
                        f"of the trace waits for one of agent {self._calls.agent[parent]}, which "
                        "should be within the joint radius"
                    )
                await tasks[parent]
            await send(call)

        async with asyncio.TaskGroup() as group:
            for call in calls:
                tasks[call] = group.create_task(one(call))


class Recording(World):
    """Agents move as in a trace. They perceive the others in sight."""

    name = "recorded"
    observation_space = Sequence(FreeText())
    action_space = Discrete(1 << 31)

    def __init__(self, trace: Trace, calls: Calls) -> None:
        meta = trace.meta
        self.perception_radius, self.joint_radius = meta.perception_radius, meta.joint_radius
        self.max_velocity = rounded_velocity(trace.positions, meta.max_velocity)
        self.metric = metric_named(meta.metric, meta.map, meta.max_velocity, meta.graph)
        self.map, self.step_s, self.start = meta.map, meta.step_s, meta.start
        self._names, self._positions, self._calls = meta.agents, trace.positions, calls
        self._numbers = {name: number for number, name in enumerate(meta.agents)}

    def reset(self, *, seed: int, options: Any) -> list[Entity]:
        return [Entity(name, self._position(0, name), "agent") for name in self._names]

    def observe(self, view: Any) -> Any:
        return tuple(f"{body.name} at {body.position}" for body in view.agents())

    def resolve(self, cluster: Any) -> Awaitable[None] | None:
        who = {
            call: member
            for member in cluster
            for call in self._calls.of(cluster.step, self._numbers[member.name], joint=True)
        }
        if who:
            return self._act_jointly(cluster, who)
        self._move(cluster)
        return None

    async def _act_jointly(self, cluster: Any, who: dict[int, Any]) -> None:
        await self._calls.in_order(who, lambda call: who[call].ask(who[call].name, call))
        self._move(cluster)

    def _move(self, cluster: Any) -> None:
        if cluster.step + 1 < len(self._positions):
            for member in cluster:
                member.move(self._position(cluster.step + 1, member.name))

    def _position(self, step: int, name: str) -> tuple[float, float]:
        x, y = self._positions[step, self._numbers[name]].tolist()
        return x, y


@dataclass
class Recorded(Agent):
    """Makes the calls of its agent in the trace; its action is their number."""

    name: str
    number: int
    _calls: Calls

    def routine(self, observation: Any) -> Any:
        return UNDECIDED if self._calls.of(self.step, self.number, joint=False) else 0

    async def proceed(self, observation: Any, llm: Any) -> Any:
        calls = self._calls.of(self.step, self.number, joint=False)
        await self._calls.in_order(calls, lambda call: self._calls.send(call, llm, observation))
        return len(calls)

    async def answer(self, question: Any, llm: Any) -> Any:
        await self._calls.send(question, llm)


def _joint(trace: Trace) -> set[int]:
    """The agent-steps that have a call which waited for another agent's, or for which one did."""
    calls = trace.calls
    child = np.repeat(np.arange(len(calls)), np.diff(calls.parent_offsets))
    is_joint = calls.agent[child] != calls.agent[calls.parents]
    found = np.concatenate([child[is_joint], calls.parents[is_joint]])
    rows = calls.step[found].astype(np.int64) * trace.agents + calls.agent[found]
    return set(rows.tolist())


def _words(key: str, count: int) -> list[str]:
    return Random(key).choices(WORDS, k=count)


def _marked(text: str, seen: list[str]) -> str:
    """`text` with other letters at its end, which depend on `seen`; as long as before in tokens."""
    if not seen:
        return text
    end = len(text.rstrip())
    last = text[max(0, end - 4) : end]
    letters = Random(f"{seen}").choices(ascii_lowercase, k=len(last))
    marked = "".join(old if old.isspace() else new for old, new in zip(last, letters, strict=True))
    return text[: end - len(last)] + marked + text[end:]


def author(request: Any, random: Random) -> str:
    """Answers in place of a model: as many words as the answer has tokens."""
    return " ".join(random.choices(WORDS, k=request.max_tokens))


def make(
    *,
    trace: str,
    agents: int | None = None,
    seed: int = 0,  # noqa: ARG001 -- of every world
    first_hour: float | None = None,
    last_hour: float | None = None,
    chat: bool = False,
    texts: bool = False,
) -> Scenario:
    """The first `agents` agents of the file `trace`, from `first_hour` to `last_hour` of its day.

    With `chat` prompts are chats, for servers without the route of completions; with `texts` they
    are those of the trace. Raises MetropolisError if the trace cannot be read or lacks the hours,
    agents or texts.
    """
    part = read_trace(trace)
    begin, end = part.hour_of_step(0), part.hour_of_step(part.steps)
    part = part.between_hours(
        begin if first_hour is None else first_hour, end if last_hour is None else last_hour
    )
    part.check_filled()
    if agents is not None and agents > part.agents:
        raise MetropolisError(f"{trace}: has {part.agents} agents; --agents should be at most that")
    part = part.first_agents(part.agents if agents is None else agents)
    if texts and not any(part.calls.prompt or ()):
        raise MetropolisError(
            f"{trace}: has no texts of prompts, which `metropolis run --keep-text` keeps; omit "
            "texts=true"
        )
    calls = Calls(part, is_chat=chat, has_texts=texts)
    who = [Recorded(name, number, calls) for number, name in enumerate(part.meta.agents)]
    return Scenario(
        Recording(part, calls), who, author, steps=part.steps, functions=part.calls.functions
    )
