"""A conversation: a joint action of two residents, held turn by turn within one step.

Both perceive it in their next step (an event with every line), and are occupied for the time that
speaking the lines takes. No agent writes into another's memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from metropolis.types import Step
from metropolis.world.transaction import Member, Transaction

CONVERSATION = "conversation"
UTTERANCES_MAX = 16
LETTERS_PER_MINUTE = 240
"""Thirty words, which gives the length of conversations in Park et al."""
LINE_LETTERS = 1000


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a speaker."""

    speaker: str
    text: str


@dataclass(frozen=True, slots=True)
class Preparation:
    """A question before a turn: how do you stand with `partner`? The answer is a `Relation`.

    Answering does not change the speaker, since the conversation may end before the turn.
    """

    partner: str
    after: asyncio.Event | None = None
    """Set when the speaker has recalled the memories for its previous turn; None: it had none."""


@dataclass(frozen=True, slots=True)
class Relation:
    """How a speaker stands with its partner, and the numbers of the memories that say so."""

    text: str
    memories: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """A question to the next speaker: what do you say? The answer is an `Utterance`."""

    partner: str
    partner_doing: str
    lines: tuple[Line, ...]
    relation: Relation
    """The relation of the speaker to its partner."""
    recalled: asyncio.Event
    """The speaker sets it when it has recalled the memories for the turn, which changes the times
    of their retrieval."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """The text of a turn, and whether it ends the conversation."""

    text: str
    ends: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """A question to the initiator: what was it about? The answer is a text."""

    partner: str
    lines: tuple[Line, ...]


def pairs_of(cluster: Transaction, members: Sequence[Member]) -> list[tuple[Member, Member]]:
    """The pairs that talk: invitations in order of `members`, if both are free.

    Only the initiator decides, as in the code of Park et al. (2023).
    """
    taken: set[str] = set()
    pairs = []
    for member in members:
        wanted = "" if member.action is None else member.action.talk_to
        if not wanted or wanted not in cluster or {wanted, member.name} & taken:
            continue
        partner = cluster[wanted]
        in_sight = any(body.name == wanted for body in member.agents())
        if in_sight and _free(member) and _free(partner):
            taken |= {wanted, member.name}
            pairs.append((member, partner))
    return pairs


async def converse(pairs: Sequence[tuple[Member, Member]], step_s: float) -> set[str]:
    """Hold the conversations of `pairs` concurrently; returns the names of those who talk."""
    held = await asyncio.gather(*(_hold(first, second, step_s) for first, second in pairs))
    return {
        member.name for pair, talked in zip(pairs, held, strict=True) if talked for member in pair
    }


def _free(member: Member) -> bool:
    return not member.me["asleep"] and member.me["busy_until"] <= member.step


async def _hold(first: Member, second: Member, step_s: float) -> bool:
    """Hold one conversation; returns whether anything was said.

    A speaker prepares its next turn while it and the other speak. Up to two preparations are in
    vain, those of turns that do not take place.
    """
    lines: tuple[Line, ...] = ()
    speaker, listener = first, second
    async with asyncio.TaskGroup() as group:
        prepared = [
            group.create_task(_prepare(first, second)),
            group.create_task(_prepare(second, first)),
        ]
        while len(lines) < UTTERANCES_MAX:
            relation = await prepared.pop(0)
            if not isinstance(relation, Relation):
                break
            recalled = asyncio.Event()
            turn = Turn(listener.name, listener.me["doing"], lines, relation, recalled)
            said = group.create_task(listener.ask(speaker.name, turn))
            if len(lines) + 2 < UTTERANCES_MAX:
                prepared.append(group.create_task(_prepare(speaker, listener, recalled)))
            utterance = await said
            if not isinstance(utterance, Utterance):
                break
            lines += (Line(speaker.name, utterance.text[:LINE_LETTERS]),)
            if utterance.ends:
                break
            speaker, listener = listener, speaker
        if not lines:
            return False
        about = await second.ask(first.name, Summary(second.name, lines))
    _write(first, second, lines, str(about), first.step + _steps(lines, step_s))
    return True


async def _prepare(speaker: Member, listener: Member, after: asyncio.Event | None = None) -> Any:
    return await listener.ask(speaker.name, Preparation(listener.name, after))


def _write(first: Member, second: Member, lines: Sequence[Line], about: str, until: Step) -> None:
    first.emit(
        CONVERSATION,
        partner=second.name,
        about=about,
        lines=[(line.speaker, line.text) for line in lines],
        until=until,
    )
    for member, partner in ((first, second), (second, first)):
        member.write(
            doing=f"conversing about {about}",
            emoji="💬",
            thing="",
            thing_doing="",
            busy_until=until,
            partner=partner.name,
        )


def _steps(lines: Sequence[Line], step_s: float) -> int:
    """Duration of the lines in steps, at least 1."""
    letters = sum(len(line.text) for line in lines)
    return max(1, ceil(letters / LETTERS_PER_MINUTE * 60 / step_s))
