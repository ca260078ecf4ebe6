"""Reflection: after enough important events, a resident draws conclusions."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from metropolis.llm.agent import LLM
from metropolis.worlds.smallville import prompts
from metropolis.worlds.smallville.planning import lines_of
from metropolis.worlds.smallville.talking import think

if TYPE_CHECKING:
    from metropolis.worlds.smallville.resident import Resident

QUESTIONS, INSIGHTS = 3, 5
RECENT_MEMORIES, EVIDENCE_MEMORIES = 30, 20
NEWEST_MEMORIES = 200
"""Number of newest memories among which the recently retrieved ones are chosen."""
_EVIDENCE = re.compile(r"\s*\(because of ([\d, and]+)\)\s*\.?\s*$")


async def reflect(me: Resident, now_s: int, llm: LLM) -> list[str]:
    """Ask questions, answer them from memory, and store the insights; returns these."""
    me.unreflected = me.settings.reflection_threshold
    newest = me.memory.latest(RECENT_MEMORIES, among=NEWEST_MEMORIES)
    answer = await llm.chat(prompts.focal_pt(me, newest), function="focal_pt", max_tokens=150)
    questions = lines_of(answer.text)[:QUESTIONS]
    found = [me.recall(question, EVIDENCE_MEMORIES) for question in questions]
    answers = await asyncio.gather(
        *(
            llm.chat(
                prompts.insight_and_guidance(me, question, nodes),
                function="insight_and_guidance",
                max_tokens=200,
            )
            for question, nodes in zip(questions, found, strict=True)
        )
    )
    numbers = {id(node): number for number, node in enumerate(me.memory.nodes)}
    insights = []
    for answer, nodes in zip(answers, found, strict=True):
        for line in lines_of(answer.text)[:INSIGHTS]:
            text, places = insight_of(line)
            evidence = [numbers[id(nodes[place])] for place in places if place < len(nodes)]
            insights.append((text, evidence))
    await think(me, insights, now_s, llm)
    return [text for text, _ in insights]


def insight_of(line: str) -> tuple[str, list[int]]:
    """An insight and the indices of its evidence: `text (because of 1, 5, 3)`."""
    found = _EVIDENCE.search(line)
    if found is None:
        return line, []
    places = [int(number) - 1 for number in re.findall(r"\d+", found[1])]
    return line[: found.start()], [place for place in places if place >= 0]
