"""The scripted author: answers residents' requests offline, with the request's seed.

It knows only the prompt and the phrases of `phrases.toml`, so news spreads only through residents.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from metropolis.llm.base import Request
from metropolis.worlds.smallville.author import interview, plans, small, talk
from metropolis.worlds.smallville.author.prompt import Prompt

_WRITERS: dict[str, Callable[[Prompt, Random], str]] = {
    "event_poignancy": small.poignancy,
    "chat_poignancy": small.poignancy,
    "thought_poignancy": small.poignancy,
    "event_triple": small.triple,
    "act_obj_event_triple": small.triple,
    "pronunciatio": small.emoji,
    "act_obj_desc": small.thing_state,
    "action_sector": small.sector,
    "action_arena": small.arena,
    "action_game_object": small.thing,
    "wake_up_hour": plans.wake_up_hour,
    "daily_plan": plans.daily_plan,
    "revise_identity": plans.revise_identity,
    "hourly_schedule": plans.hourly_schedule,
    "task_decomp": plans.task_decomp,
    "new_decomp_schedule": plans.new_decomp_schedule,
    "decide_to_talk": talk.decide_to_talk,
    "decide_to_react": talk.decide_to_react,
    "summarize_relationship": talk.relationship,
    "iterative_convo": talk.utterance,
    "summarize_conversation": talk.summary,
    "planning_thought_on_convo": talk.planning_thought,
    "memo_on_convo": talk.memo,
    "focal_pt": talk.questions,
    "insight_and_guidance": talk.insights,
    "interview": interview.answer,
}
FUNCTIONS = tuple(_WRITERS)
"""The functions of residents' requests."""


def author(request: Request, random: Random) -> str:
    """Answer a request in the format of its function."""
    writer = _WRITERS.get(request.function, small.plain)
    return writer(Prompt(request.text), random)
