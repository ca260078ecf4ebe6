"""A resident's perception of events, and their importance to it."""

from __future__ import annotations

import asyncio
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from metropolis.llm.agent import LLM
from metropolis.worlds.smallville import prompts
from metropolis.worlds.smallville.memory import IDLE, Kind, Node
from metropolis.worlds.smallville.world import Observation

if TYPE_CHECKING:
    from metropolis.worlds.smallville.resident import Resident

IMPORTANCE_DEFAULT, IMPORTANCE_MAX = 4, 10


class Noticed(NamedTuple):
    """A perceived event: `subject` `predicate` `object`."""

    text: str
    subject: str
    predicate: str
    object: str

    @property
    def triple(self) -> tuple[str, str, str]:
        """The event as subject, predicate and object, by which a resident tells if it is new."""
        return self.subject, self.predicate, self.object


async def perceive(me: Resident, observation: Observation, llm: LLM) -> list[Noticed]:
    """Remember the events that are not among the last remembered, the nearest first."""
    fresh = []
    for event in attended(me, observation):
        if event.triple not in me.recent:
            fresh.append(event)
            me.recent = [*me.recent, event.triple][-me.settings.retention :]
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
    return fresh


Scene = tuple[object, ...]
"""Everything that determines which events a resident attends to, and which of them are new."""


def notices(me: Resident, observation: Observation) -> bool:
    """Whether an event is new to the resident."""
    if observation.heard:
        return True
    activity, talk = me.activity, me.talk
    scene: Scene = (
        (observation.x, observation.y),
        observation.nearby,
        me.recent,
        activity.what,
        activity.place,
        activity.thing,
        activity.thing_doing,
        activity.goal,
        None if talk is None else (talk.about, talk.partner),
    )
    if scene == me._unnoticed:
        return False
    if any(event.triple not in me.recent for event in attended(me, observation)):
        return True
    me._unnoticed = scene
    return False


async def rate(me: Resident, kind: Kind, text: str, llm: LLM) -> int:
    """The importance of `text` to the resident, 1 to 10, as the model rates it.

    A text in memory keeps its importance, unless the settings say to rate it again.
    """
    known = me.memory.importance(kind, text)
    if known is not None and not me.settings.rerates:
        return known
    function = f"{kind}_poignancy"
    prompt = prompts.poignancy(me, function, text)
    answer = (await llm.chat(prompt, function=function, max_tokens=16, temperature=0)).text
    found = re.search(r"\d+", answer)
    return min(max(int(found[0]), 1), IMPORTANCE_MAX) if found else IMPORTANCE_DEFAULT


async def _rate(me: Resident, event: Noticed, llm: LLM) -> int:
    if event.object == IDLE:
        return 1
    return await rate(me, "event", event.text, llm)


def attended(me: Resident, observation: Observation) -> list[Noticed]:
    """Speech, and the nearest events within the attention bandwidth.

    Events are activities, the resident's own included, and the states of objects. At equal
    distance its own come first, then those of others by name, then unused objects.
    """
    settings, here = me.settings, (observation.x, observation.y)
    found = [(0, event) for event in _own(me, here)]
    used = {here} if len(found) > 1 else set()
    for seen in observation.nearby:
        at = seen.x, seen.y
        distance = (at[0] - here[0]) ** 2 + (at[1] - here[1]) ** 2
        found.append(
            (distance, Noticed(f"{seen.name} is {seen.doing}", seen.name, "is", seen.doing))
        )
        thing = f"{seen.place}: {seen.thing}"
        if seen.thing and me.atlas.thing(at) == thing:
            used.add(at)
            if seen.thing_doing:
                found.append((distance, _state(thing, seen.thing_doing)))
    if settings.idle_objects:
        idle: set[str] = set()
        for distance, tile, thing in me.atlas.things_near(here, settings.vision_tiles):
            if tile not in used and thing not in idle:
                idle.add(thing)
                found.append((distance, _state(thing, IDLE)))
                if len(idle) == settings.attention_bandwidth:
                    break
    found.sort(key=lambda event: event[0])
    nearest = dict.fromkeys(event for _, event in found)
    heard = (
        Noticed(f"{line.speaker} said: {line.text}", line.speaker, "said", line.text)
        for line in observation.heard
    )
    return [*heard, *list(nearest)[: settings.attention_bandwidth]]


def _own(me: Resident, here: tuple[int, int]) -> list[Noticed]:
    """The resident's activity, and the object that it uses."""
    if me.talk is not None:
        about = f"conversing about {me.talk.about}"
        return [Noticed(f"{me.name} is {about}", me.name, "chat with", me.talk.partner)]
    activity = me.activity
    if not activity.what:
        return []
    own = [Noticed(f"{me.name} is {activity.what}", me.name, "is", activity.what)]
    if activity.thing_doing and here == activity.goal:
        own.append(_state(f"{activity.place}: {activity.thing}", activity.thing_doing))
    return own


@lru_cache(maxsize=4096)
def _state(thing: str, doing: str) -> Noticed:
    """The event that the object `thing`, as `sector: arena: name`, is in a state."""
    return Noticed(f"the {thing.rpartition(': ')[2]} is {doing}", thing, "is", doing)
