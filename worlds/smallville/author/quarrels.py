"""Quarrels between two residents: how they begin, what is remembered, how they end."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from zlib import crc32

from metropolis.worlds.smallville.author.dates import day_in, spoken
from metropolis.worlds.smallville.author.prompt import phrases

CROSS = re.compile(r"cross with you about (.+?)\.(?: |$)")
SORRY = re.compile(r"[Aa]bout (.+?) the other day: ")
_PER_THOUSAND = 25
"""How many of a thousand pairs quarrel when they talk on a day."""


@dataclass(frozen=True, slots=True)
class Quarrel:
    """A quarrel that one of the two remembers."""

    other: str
    day: date
    matter: str


def matter(me: str, other: str, today: date) -> str:
    """What the two quarrel about if they talk today; mostly nothing, the empty text."""
    draw = crc32(f"{' '.join(sorted((me, other)))} {today}".encode())
    matters: list[str] = phrases()["matters"]
    return matters[draw // 1000 % len(matters)] if draw % 1000 < _PER_THOUSAND else ""


def memory_of(me: str, other: str, about: str, today: date) -> str:
    """The memory of a quarrel."""
    return f"{me} quarrelled with {other} on {spoken(today)} about {about}."


def memory_of_peace(me: str, other: str, about: str, today: date) -> str:
    """The memory of its end."""
    return f"{me} made it up with {other} on {spoken(today)} after the quarrel about {about}."


def open_quarrels(texts: Iterable[str], me: str, today: date) -> list[Quarrel]:
    """The quarrels in memories that have not been made up."""
    texts = list(texts)
    found = []
    for text in texts:
        quarrel = re.search(rf"{re.escape(me)} quarrelled with (.+?) on (.+?) about (.+?)\.", text)
        if quarrel is None:
            continue
        other, day, about = quarrel[1], day_in(quarrel[2], today), quarrel[3]
        peace = f"{me} made it up with {other} on "
        if day and not any(peace in one and f"about {about}." in one for one in texts):
            found.append(Quarrel(other, day, about))
    return found


def gossip(quarrels: Iterable[Quarrel]) -> list[str]:
    """News of own quarrels, in the first person."""
    return [
        f"{quarrel.other} and I have fallen out over {quarrel.matter} since {spoken(quarrel.day)}."
        for quarrel in quarrels
    ]


def reported(told: str, speaker: str) -> str:
    """News as the hearer remembers it, in the third person."""
    return told.replace(" and I have fallen out", f" and {speaker} have fallen out")
