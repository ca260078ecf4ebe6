"""A resident's reaction to a newly perceived resident: talk, or wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metropolis.llm.agent import LLM
from metropolis.worlds.smallville import prompts
from metropolis.worlds.smallville.perceiving import Noticed
from metropolis.worlds.smallville.planning import chooses, revise_tasks
from metropolis.worlds.smallville.state import DAY_S, HOUR_S, MINUTE_S
from metropolis.worlds.smallville.world import Doing, Observation, Seen

if TYPE_CHECKING:
    from metropolis.worlds.smallville.resident import Resident

SILENCE_S = 8000
"""The time after a conversation in which the same pair does not talk again."""
LATE_S = 23 * HOUR_S
"""From this time of day until midnight residents do not react to others."""
WAITING = "waiting to start"
"""The beginning of the activity of those who wait."""
NEWEST_MEMORIES = 8
"""Number of memories of the other that a decision uses."""


async def react(
    me: Resident, observation: Observation, fresh: Sequence[Noticed], now_s: int, llm: LLM
) -> tuple[str, Doing | None]:
    """(the resident to talk to, or an empty text; the activity of waiting for another, or None).

    The resident reacts to one of the newly perceived people, at random.
    """
    new = {event.subject for event in fresh}
    people = [seen for seen in observation.nearby if seen.name in new]
    if not people or _waits(me.activity.what) or now_s % DAY_S >= LATE_S:
        return "", None
    other = me.random.choice(people)
    if other.asleep or me.activity.asleep or _waits(other.doing):
        return "", None
    if (
        may_talk(me, other.name, now_s)
        and other.free
        and await _wants_to_talk(me, other, now_s, llm)
    ):
        return other.name, None
    if _in_the_way(me, observation, other) and now_s < other.until_s - MINUTE_S:
        prompt = prompts.decide_to_react(me, other, now_s)
        answer = await llm.chat(prompt, function="decide_to_react", max_tokens=20)
        if chooses(answer.text, r"wait\w*", "go on|no|not"):
            return "", await _wait(me, observation, other.until_s - MINUTE_S, llm)
    return "", None


def may_talk(me: Resident, other: str, now_s: int) -> bool:
    """Whether the two have not talked recently."""
    return other not in me.talked or now_s - me.talked[other] >= SILENCE_S


async def _wants_to_talk(me: Resident, other: Seen, now_s: int, llm: LLM) -> bool:
    """Whether the resident wants to talk to `other` now, as the model decides."""
    known = me.memory.about(other.name, NEWEST_MEMORIES, me.embed)
    prompt = prompts.decide_to_talk(me, other.name, other.doing, known, now_s)
    answer = await llm.chat(prompt, function="decide_to_talk", max_tokens=20)
    return chooses(answer.text, "yes", "no|not")


def _in_the_way(me: Resident, observation: Observation, other: Seen) -> bool:
    """Whether `other` uses the object that the resident is walking to."""
    own = me.activity
    walking = (observation.x, observation.y) != own.goal
    return walking and bool(own.thing) and (own.place, own.thing) == (other.place, other.thing)


async def _wait(me: Resident, observation: Observation, until_s: int, llm: LLM) -> Doing:
    """Wait in place, and plan anew what comes after the wait."""
    me.activity.what, me.activity.until_s = f"{WAITING} {me.activity.what}", until_s
    me.activity.goal, me.activity.thing_doing = (observation.x, observation.y), ""
    await revise_tasks(me, until_s, llm)
    return Doing(me.activity.what, "⌛", me.activity.place, until_s=until_s)


def _waits(doing: str) -> bool:
    return doing.startswith(WAITING)
