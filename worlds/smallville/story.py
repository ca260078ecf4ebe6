"""A run in words people like to read: who woke, met whom, said what, and what word got round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from metropolis.world.entities import Entity, Event
from metropolis.world.record import StepRecord
from metropolis.worlds.smallville.dialogue import CONVERSATION
from metropolis.worlds.smallville.profile import Profile
from metropolis.worlds.smallville.world import SLEEPING, THOUGHT, SmallVille

QUIET_STEPS = 90
"""How long the story keeps silent after a conversation without news."""
MARGIN = " " * 6


class Story:
    """Tells a run step by step; what it has told already is all it keeps.

    A piece of news is what a resident's profile says it likes to pass on. Whoever hears its first
    words in a conversation knows it from then on.
    """

    def __init__(self, world: SmallVille, residents: Sequence[Profile]) -> None:
        self._world = world
        self._count = len(residents)
        self._knowing: dict[str, set[str]] = {}
        for resident in residents:
            for news in resident.news:
                self._knowing.setdefault(news, set()).add(resident.name)
        self._asleep = {resident.name for resident in residents}
        self._quiet_until = 0
        self._reflected: set[str] = set()

    def __call__(self, record: StepRecord) -> Sequence[str]:
        """What to tell of a step; most steps are not worth a word."""
        return [*self._sleep(record), *self._talks(record), *self._thoughts(record)]

    def _time(self, record: StepRecord) -> str:
        moment = self._world.start + timedelta(seconds=record.step * self._world.step_s)
        return f"{moment:%H:%M}"

    def _sleep(self, record: StepRecord) -> list[str]:
        """Who woke up or went to sleep; who lives together is named together."""
        woken, gone = [], []
        for name, body in record.writes.items():
            if body is None or body.kind != "agent":
                continue
            if body["asleep"] and name not in self._asleep:
                self._asleep.add(name)
                gone.append(name)
            elif not body["asleep"] and name in self._asleep and body["doing"] != SLEEPING:
                self._asleep.discard(name)
                woken.append((name, body))
        lines = [f"{self._time(record)} {name} {_wakes(body)}." for name, body in woken]
        if gone:
            verb = "goes" if len(gone) == 1 else "go"
            lines.append(f"{self._time(record)} {_listed(gone)} {verb} to sleep.")
        return lines

    def _talks(self, record: StepRecord) -> list[str]:
        lines = []
        for event in record.events:
            if event.kind != CONVERSATION:
                continue
            told = self._told(event)
            if not told and record.step < self._quiet_until:
                continue
            place = _where(record.writes, event.source)
            lines.append(
                f"{self._time(record)} {event.source} and {event['partner']} talk{place} about"
                f" {event['about']}."
            )
            if told:
                lines += told
            else:
                self._quiet_until = record.step + QUIET_STEPS
                lines += [_quote(speaker, text) for speaker, text in event["lines"][:2]]
        return lines

    def _told(self, event: Event) -> list[str]:
        """The lines in which one of the two hears news, and how far the news has come."""
        two = (event.source, event["partner"])
        lines = []
        for speaker, text in event["lines"]:
            for news, knowing in self._knowing.items():
                hearer = two[1] if speaker == two[0] else two[0]
                if hearer in knowing or news not in text:
                    continue
                knowing |= {speaker, hearer}
                lines.append(_quote(speaker, text))
                if len(knowing) > 2:
                    lines.append(f"{MARGIN}({len(knowing)} of {self._count} know it now.)")
        return lines

    def _thoughts(self, record: StepRecord) -> list[str]:
        """The first reflection of each."""
        lines = []
        for event in record.events:
            if event.kind == THOUGHT and event.source not in self._reflected:
                self._reflected.add(event.source)
                thought = event["text"].rstrip(".")
                lines.append(f"{self._time(record)} {event.source} reflects: “{thought}.”")
        return lines


def _quote(speaker: str, text: Any) -> str:
    return f"{MARGIN}{speaker}: “{text}”"


def _where(writes: Mapping[str, Entity | None], name: str) -> str:
    body = writes.get(name)
    place = body["place"].partition(": ")[0] if body else ""
    return f" at {place}" if place else ""


def _wakes(body: Entity) -> str:
    home = body["place"].partition(": ")[0]
    return f"wakes up at {home} and is {body['doing']}"


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
