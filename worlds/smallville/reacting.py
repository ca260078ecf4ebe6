"""A resident's reaction to a newly perceived resident: talk, or wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metropolis.llm.agent import LLM
from metropolis.worlds.smallville import prompts
from metropolis.worlds.smallville.perceiving import Noticed
from metropolis.worlds.smallville.state import DAY_S, HOUR_S
from metropolis.worlds.smallville.world import Observation, Seen

if TYPE_CHECKING:
    from metropolis.worlds.smallville.resident import Resident

SILENCE_S = 8000
"""The time after a conversation in which the same pair does not talk again."""
LATE_S = 23 * HOUR_S
WAIT_S = 300
NEWEST_MEMORIES, RELEVANT_MEMORIES = 4, 8
"""Number of memories of the other that a decision uses: the newest, and the most relevant."""


async def react(
    me: Resident, observation: Observation, fresh: Sequence[Noticed], now_s: int, llm: LLM
) -> str:
    """The name of the resident to talk to; empty: none. May also decide to wait."""
    new = {event.subject for event in fresh}
    other = next((seen for seen in observation.nearby if seen.name in new), None)
    if other is None or other.asleep or me.activity.asleep:
        return ""
    if may_talk(me, other.name, now_s) and other.free:
        return other.name if await wants_to_talk(me, other.name, other.doing, now_s, llm) else ""
    if _in_the_way(me, observation, other) and now_s >= me.waiting_until_s:
        prompt = prompts.decide_to_react(me, other, now_s)
        answer = await llm.chat(prompt, function="decide_to_react", max_tokens=20)
        if "wait" in answer.text.lower():
            me.waiting_until_s = now_s + WAIT_S
    return ""


def may_talk(me: Resident, other: str, now_s: int) -> bool:
    """Whether the two have not talked recently, and it is not too late."""
    silent = other not in me.talked or now_s - me.talked[other] >= SILENCE_S
    return silent and now_s % DAY_S < LATE_S


async def wants_to_talk(me: Resident, other: str, doing: str, now_s: int, llm: LLM) -> bool:
    """Whether the resident wants to talk to `other` now, as the model decides."""
    known = me.memory.about(other, NEWEST_MEMORIES, me.embed)
    for node in me.memory.retrieve(f"{other} is {doing}", RELEVANT_MEMORIES, now_s, me.embed):
        if node not in known:
            known.append(node)
    prompt = prompts.decide_to_talk(me, other, doing, known, now_s)
    answer = await llm.chat(prompt, function="decide_to_talk", max_tokens=20)
    return "yes" in answer.text.lower()


def _in_the_way(me: Resident, observation: Observation, other: Seen) -> bool:
    """Whether `other` uses the object that the resident is walking to."""
    own = me.activity
    walking = (observation.x, observation.y) != own.goal
    return walking and bool(own.thing) and (own.place, own.thing) == (other.place, other.thing)
