"""A conversation: a joint action of two residents, held turn by turn within one step.

Both learn in their next step what was said (an event that carries every line), and are occupied for
as long as it takes to say it. Nobody writes into another's memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from metropolis.types import Step
from metropolis.world.transaction import Member, Transaction

CONVERSATION = "conversation"
UTTERANCES_MAX = 16
LETTERS_PER_MINUTE = 240
"""Thirty words: how long Park et al.'s agents take for a conversation."""
LINE_LETTERS = 1000


@dataclass(frozen=True, slots=True)
class Line:
    """What somebody said."""

    speaker: str
    text: str


@dataclass(frozen=True, slots=True)
class Invitation:
    """Asked of the one who is addressed: will you talk? The answer is True, or anything else."""

    partner: str
    partner_doing: str


@dataclass(frozen=True, slots=True)
class Turn:
    """Asked of the speaker: what do you say? The answer is an `Utterance`."""

    partner: str
    partner_doing: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Utterance:
    """One turn's words, and whether they end the conversation."""

    text: str
    ends: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """Asked of the one who began: what was it about? The answer is a text."""

    partner: str
    lines: tuple[Line, ...]


async def pairs_of(cluster: Transaction, members: Sequence[Member]) -> list[tuple[Member, Member]]:
    """Who talks with whom: invitations in the order given, as far as both are free and willing."""
    taken: set[str] = set()
    pairs = []
    for member in members:
        wanted = "" if member.action is None else member.action.talk_to
        if not wanted or wanted not in cluster or {wanted, member.name} & taken:
            continue
        partner = cluster[wanted]
        in_sight = any(body.name == wanted for body in member.agents())
        if not (in_sight and _free(member) and _free(partner)):
            continue
        asked = Invitation(member.name, member.me["doing"])
        mutual = partner.action is not None and partner.action.talk_to == member.name
        if mutual or await member.ask(wanted, asked) is True:
            taken |= {wanted, member.name}
            pairs.append((member, partner))
    return pairs


async def converse(pairs: Sequence[tuple[Member, Member]], step_s: float) -> set[str]:
    """Hold the conversations of `pairs`, all at once; returns the names of those who talk."""
    held = await asyncio.gather(*(_hold(first, second, step_s) for first, second in pairs))
    return {
        member.name for pair, talked in zip(pairs, held, strict=True) if talked for member in pair
    }


def _free(member: Member) -> bool:
    return not member.me["asleep"] and member.me["busy_until"] <= member.step


async def _hold(first: Member, second: Member, step_s: float) -> bool:
    lines: tuple[Line, ...] = ()
    speaker, listener = first, second
    while len(lines) < UTTERANCES_MAX:
        turn = Turn(listener.name, listener.me["doing"], lines)
        utterance = await listener.ask(speaker.name, turn)
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
    """How long it takes to say the lines; at least a step."""
    letters = sum(len(line.text) for line in lines)
    return max(1, ceil(letters / LETTERS_PER_MINUTE * 60 / step_s))
