"""The spread of news: who knows which fact, by what residents tell each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from metropolis.world.entities import Event
from metropolis.worlds.smallville.profile import Profile, facts_of


@dataclass(frozen=True, slots=True)
class Told:
    """The first hearing of a fact by a resident, in the line `turn` of a conversation."""

    turn: int
    news: str
    hearer: str


class Spread:
    """Who knows which news and secrets of residents' profiles, from the day `today` on.

    The owner of a fact knows it from its day on (`Fact.since`). A resident who hears all words of a
    fact's mark in one line knows the fact from then on; the other words of a telling may differ.
    """

    def __init__(self, residents: Sequence[Profile], today: date) -> None:
        self.texts: dict[str, str] = {}
        """Mark -> the fact, as its first owner's profile words it."""
        self.knowing: dict[str, set[str]] = {}
        """Mark -> the names of those who know; empty before the first day of the fact."""
        self._later: list[tuple[date, str, str]] = []
        """(day, mark, owner) of facts that their owners do not know yet."""
        for resident in residents:
            for fact in facts_of(resident):
                self.texts.setdefault(fact.mark, fact.text)
                self.knowing.setdefault(fact.mark, set())
                self._later.append((fact.since or today, fact.mark, resident.name))
        self.begin(today)

    def begin(self, today: date) -> None:
        """Begin a day: owners learn their facts of `today` and of earlier days."""
        for since, mark, owner in self._later:
            if since <= today:
                self.knowing[mark].add(owner)
        self._later = [one for one in self._later if one[0] > today]

    def listen(self, event: Event) -> Iterator[Told]:
        """The facts that one of the two speakers of a conversation learns, in order."""
        two = (event.source, event["partner"])
        for turn, (speaker, text) in enumerate(event["lines"]):
            hearer = two[1] if speaker == two[0] else two[0]
            for mark, knowing in self.knowing.items():
                if hearer not in knowing and tells(text, mark):
                    knowing |= {speaker, hearer}
                    yield Told(turn, mark, hearer)


def sentences(text: str) -> list[str]:
    """The sentences of what a resident says."""
    return re.split(r"(?<=[.!?]) ", text.strip())


def tells(text: str, mark: str) -> bool:
    """Whether `text` contains all words of `mark`, which commas separate."""
    lowered = text.lower()
    return all(word in lowered for word in mark.lower().split(", "))
