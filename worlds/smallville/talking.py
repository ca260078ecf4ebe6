"""A resident's turns in a conversation, and its memories of it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from metropolis.llm.agent import LLM
from metropolis.names import cut
from metropolis.worlds.smallville import prompts
from metropolis.worlds.smallville.dialogue import (
    Preparation,
    Relation,
    Summary,
    Turn,
    Utterance,
)
from metropolis.worlds.smallville.geography import Tile
from metropolis.worlds.smallville.memory import Node
from metropolis.worlds.smallville.perceiving import rate
from metropolis.worlds.smallville.planning import event_triple, first_line, lines_of, revise_tasks
from metropolis.worlds.smallville.state import Talk
from metropolis.worlds.smallville.world import Conversation, Observation

if TYPE_CHECKING:
    from metropolis.worlds.smallville.resident import Resident

Thought = tuple[str, Sequence[int]]
"""A text, and the numbers of the memories that it is based on."""
RELATION_MEMORIES, TURN_MEMORIES = 30, 15
_SAID = re.compile(r'"utterance"\s*:\s*"((?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*)')
_ENDS = re.compile(r'"ends"\s*:\s*"?true', re.IGNORECASE)
UTTERANCE_SCHEMA = {
    "type": "object",
    "properties": {"utterance": {"type": "string"}, "ends": {"type": "boolean"}},
    "required": ["utterance", "ends"],
    "additionalProperties": False,
}


async def answer(me: Resident, question: Any, llm: LLM) -> Any:
    """Answer a question of `dialogue`."""
    now_s = me.now_s
    match question:
        case Preparation(partner, after):
            if after is not None:
                await after.wait()
            return await _prepare(me, partner, now_s, llm)
        case Turn():
            return await _say(me, question, now_s, llm)
        case Summary(partner, lines):
            prompt = prompts.summarize_conversation(me, partner, lines)
            reply = await llm.chat(prompt, function="summarize_conversation", max_tokens=40)
            return first_line(reply.text).removeprefix("conversing about ")
    raise TypeError(f"{me.name} received {cut(question)}, which is not a question of this world")


async def remember(
    me: Resident, conversation: Conversation, observation: Observation, now_s: int, llm: LLM
) -> None:
    """Remember a conversation that has begun, and enter it."""
    partner, about = conversation.partner, conversation.about
    text = f"{me.name} and {partner} are conversing about {about}"
    importance, triple = await asyncio.gather(
        rate(me, "chat", text, llm), event_triple(me, text, "event_triple", llm)
    )
    me.unreflected -= importance
    number = me.memory.add(Node("chat", text, now_s, importance, me.name, triple[1], partner))
    meeting, until_s = _half_way(me, observation, partner), conversation.until_s
    me.talk = Talk(partner, about, conversation.lines, until_s, number, meeting)
    me.activity.until_s = min(me.activity.until_s, until_s)
    me.abed = False


def _half_way(me: Resident, observation: Observation, partner: str) -> Tile:
    """A tile in the middle of the walk between the two, beside that of the partner.

    Those who are carried, as in a train, talk on the way to their activities.
    """
    here = (observation.x, observation.y)
    if me.atlas.carried(here):
        return me.activity.goal
    there = next(((of.x, of.y) for of in observation.nearby if of.name == partner), here)
    first = me.name < partner
    walk = me.atlas.walk(*((here, there) if first else (there, here)))
    return walk[len(walk) // 2 - first] if len(walk) > 1 else here


async def look_back(me: Resident, now_s: int, llm: LLM) -> None:
    """After a conversation: draw conclusions for the plan, and note what was remarkable."""
    assert me.talk is not None
    talk, me.talk = me.talk, None
    me.talked[talk.partner] = now_s
    me.activity.until_s = now_s
    texts = await asyncio.gather(
        *(
            _conclude(me, function, talk, now_s, llm)
            for function in ("planning_thought_on_convo", "memo_on_convo")
        )
    )
    me.day.intentions.append(texts[0])
    thoughts = [(text, [talk.memory]) for text in texts]
    await asyncio.gather(think(me, thoughts, now_s, llm), revise_tasks(me, now_s, llm))


async def think(me: Resident, thoughts: Sequence[Thought], now_s: int, llm: LLM) -> None:
    """Add thoughts to the memory. Those with equal texts are rated once, unless each is rated."""
    texts = [text for text, _ in thoughts]
    rated = texts if me.settings.rerates else list(dict.fromkeys(texts))
    triples, importances = await asyncio.gather(
        asyncio.gather(*(event_triple(me, text, "event_triple", llm) for text in texts)),
        asyncio.gather(*(rate(me, "thought", text, llm) for text in rated)),
    )
    importance = dict(zip(rated, importances, strict=True))
    for (text, evidence), triple in zip(thoughts, triples, strict=True):
        me.memory.add(Node("thought", text, now_s, importance[text], *triple, tuple(evidence)))


async def _conclude(me: Resident, function: str, talk: Talk, now_s: int, llm: LLM) -> str:
    prompt = prompts.on_conversation(me, function, talk.partner, talk.lines, now_s)
    answer = await llm.chat(prompt, function=function, max_tokens=80)
    return next(iter(lines_of(answer.text)), f"{me.name} talked with {talk.partner}.")


async def _prepare(me: Resident, partner: str, now_s: int, llm: LLM) -> Relation:
    """The relationship with `partner`, from memories that are retrieved when it is used."""
    known = me.memory.search(partner, RELATION_MEMORIES, now_s, me.embed, me.settings)
    nodes = [me.memory.nodes[number] for number in known]
    prompt = prompts.summarize_relationship(me, partner, nodes, now_s)
    relation = await llm.chat(prompt, function="summarize_relationship", max_tokens=140)
    return Relation(relation.text.strip(), tuple(known))


async def _say(me: Resident, turn: Turn, now_s: int, llm: LLM) -> Utterance:
    """The next utterance, from the relationship with the partner and retrieved memories."""
    me.memory.touch(turn.relation.memories, now_s)
    lines = turn.lines
    topic = " ".join(line.text for line in lines[-2:])
    known = me.recall(
        topic or f"news for {turn.partner}, who is {turn.partner_doing}", TURN_MEMORIES
    )
    turn.recalled.set()
    prompt = prompts.iterative_convo(
        me, turn.partner, turn.partner_doing, turn.relation.text, known, lines, now_s
    )
    reply = await llm.chat(
        prompt, function="iterative_convo", max_tokens=150, json_schema=UTTERANCE_SCHEMA
    )
    return utterance_of(reply.text)


def utterance_of(text: str) -> Utterance:
    """The utterance in a model's answer, JSON that may be fenced or cut; else its first line."""
    if found := _SAID.search(text):
        try:
            words = json.loads(f'"{found[1]}"', strict=False)
        except ValueError:  # a wrong escape
            words = found[1].replace("\\", "")
        ends = _ENDS.search(text, found.end()) is not None
    else:
        words, ends = "" if text.strip().startswith(("{", "`")) else first_line(text), False
    words = words.encode(errors="replace").decode().strip()  # a lone surrogate cannot be stored
    return Utterance(words, ends or not words)
