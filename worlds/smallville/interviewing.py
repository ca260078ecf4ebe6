"""A resident's answer to an interviewer, from its memories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metropolis.llm.agent import LLM
from metropolis.worlds.smallville import prompts

if TYPE_CHECKING:
    from metropolis.worlds.smallville.resident import Resident

MEMORIES = 15
"""Number of memories that an answer uses."""


async def answer(me: Resident, question: str, llm: LLM) -> str:
    """Answer `question`; changes the times of retrieval in the memory."""
    known = me.recall(question, MEMORIES)
    prompt = prompts.interview(me, question, known, me.now_s)
    reply = await llm.chat(prompt, function="interview", max_tokens=200)
    return reply.text.strip()
