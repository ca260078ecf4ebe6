"""A resident's perception of events, and their importance to it."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metropolis.llm.agent import LLM
from metropolis.worlds.smallville import prompts
from metropolis.worlds.smallville.memory import Kind, Node
from metropolis.worlds.smallville.world import SLEEPING, Observation

if TYPE_CHECKING:
    from metropolis.worlds.smallville.resident import Resident

ATTENTION_BANDWIDTH = 3
"""Maximum number of other residents perceived at a time, the nearest first."""
RETENTION = 8
"""Number of recent events that are not new."""
IMPORTANCE_DEFAULT, IMPORTANCE_MAX = 4, 10


@dataclass(frozen=True, slots=True)
class Noticed:
    """A perceived event: `subject` `predicate` `object`."""

    text: str
    subject: str
    predicate: str
    object: str


async def perceive(me: Resident, observation: Observation, llm: LLM) -> list[Noticed]:
    """Remember the new events, the nearest first; returns them."""
    recent = me.recent
    fresh = [event for event in _attended(me, observation) if event.text not in recent]
    if not fresh:
        return fresh
    importances = await asyncio.gather(*(_rate(me, event, llm) for event in fresh))
    for event, importance in zip(fresh, importances, strict=True):
        me.memory.add(
            Node(
                "event",
                event.text,
                observation.clock_s,
                importance,
                event.subject,
                event.predicate,
                event.object,
            )
        )
        me.unreflected -= importance
    me.recent = [*recent, *(event.text for event in fresh)][-RETENTION:]
    return fresh


async def rate(me: Resident, kind: Kind, text: str, llm: LLM) -> int:
    """The importance of `text` to the resident, 1 to 10, as the model rates it.

    A text in memory keeps its importance, unless the settings say to rate it again.
    """
    known = me.memory.importance(kind, text)
    if known is not None and not me.profile.settings.rerates:
        return known
    function = f"{kind}_poignancy"
    prompt = prompts.poignancy(me, function, text)
    answer = (await llm.chat(prompt, function=function, max_tokens=16, temperature=0)).text
    found = re.search(r"\d+", answer)
    return min(max(int(found[0]), 1), IMPORTANCE_MAX) if found else IMPORTANCE_DEFAULT


async def _rate(me: Resident, event: Noticed, llm: LLM) -> int:
    if event.object == SLEEPING:
        return 1
    return await rate(me, "event", event.text, llm)


def _attended(me: Resident, observation: Observation) -> list[Noticed]:
    """The resident's own activity, speech, then the nearest others and the objects they use."""
    activity = me.activity
    found = []
    if activity.what:
        found.append(Noticed(f"{me.name} is {activity.what}", me.name, "is", activity.what))
        if activity.thing_doing and (observation.x, observation.y) == activity.goal:
            found.append(_thing(activity.thing, activity.thing_doing))
    for line in observation.heard:
        found.append(Noticed(f"{line.speaker} said: {line.text}", line.speaker, "said", line.text))
    if not observation.nearby:
        return found
    others = sorted(
        observation.nearby,
        key=lambda seen: max(abs(seen.x - observation.x), abs(seen.y - observation.y)),
    )
    events = []
    for seen in others[:ATTENTION_BANDWIDTH]:
        events.append(Noticed(f"{seen.name} is {seen.doing}", seen.name, "is", seen.doing))
        if seen.thing_doing and not seen.asleep:
            events.append(_thing(seen.thing, seen.thing_doing))
    return found + events[:ATTENTION_BANDWIDTH]


def _thing(thing: str, doing: str) -> Noticed:
    return Noticed(f"the {thing} is {doing}", thing, "is", doing)
