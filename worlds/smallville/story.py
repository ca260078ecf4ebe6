"""A run as readable text: who is awake, meetings, conversations, and how news spreads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from metropolis.types import Step
from metropolis.world.entities import AGENT, Event
from metropolis.world.record import StepRecord
from metropolis.worlds.smallville.dialogue import CONVERSATION
from metropolis.worlds.smallville.profile import Profile
from metropolis.worlds.smallville.world import THOUGHT, SmallVille

REVIEW_S = 1800
"""Interval between lines about residents who got up or went to bed."""
TALK_QUIET_S, THOUGHT_QUIET_S, CROWD_QUIET_S = 2700, 2700, 7200
"""Minimum interval between lines about talks without news, thoughts, and crowds at a place."""
CROWDS = (5, 10, 15, 20, 25, 50, 100, 200, 500)
KNOWING = (10, 25, 50, 100, 200, 500, 1000)
"""Numbers of people in one place, or with knowledge of a fact, that are reported."""
NAMES_MOST = 6
MARGIN = " " * 6


class Story:
    """Reports a run step by step; its state is what it has reported.

    News and secrets are the entries in residents' profiles. A resident who hears one word for word
    in a conversation knows it from then on.
    """

    def __init__(self, world: SmallVille, residents: Sequence[Profile]) -> None:
        self._world = world
        self._knowing: dict[str, set[str]] = {}
        for resident in residents:
            for news in (*resident.news, *resident.secrets):
                self._knowing.setdefault(news, set()).add(resident.name)
        self._homes = {resident.home for resident in residents}
        self._place = {resident.name: world.sector(*resident.at) for resident in residents}
        self._asleep = dict.fromkeys(self._place, True)
        self._woken: list[str] = []
        self._abed: list[str] = []
        self._entered: set[tuple[str, str]] = set()
        self._silent_until: dict[object, Step] = {}

    def __call__(self, record: StepRecord) -> Sequence[str]:
        """The lines for a step; for most steps there are none."""
        self._watch(record)
        told = [*self._review(record), *self._crowds(record)]
        for event in record.events:
            if event.kind == CONVERSATION:
                told += self._talk(event)
            elif event.kind == THOUGHT and self._may_tell(THOUGHT, event.step, THOUGHT_QUIET_S):
                thought = event["text"].rstrip(".")
                told.append(f"{event.source} reflects: “{thought[:1].upper()}{thought[1:]}.”")
        return told

    def _watch(self, record: StepRecord) -> None:
        """Record changes of place, and residents who wake up or fall asleep."""
        self._entered.clear()
        for name, body in record.writes.items():
            if body is None or body.kind != AGENT:
                continue
            place = self._world.sector(int(body.position[0]), int(body.position[1]))
            if place != self._place[name]:
                self._entered.add(place)
                self._place[name] = place
            if body["asleep"] != self._asleep[name]:
                self._asleep[name] = body["asleep"]
                (self._abed if body["asleep"] else self._woken).append(name)

    def _review(self, record: StepRecord) -> list[str]:
        lines = []
        if self._woken and self._may_tell("up", record.step, REVIEW_S):
            lines.append(f"{_listed(self._woken)} {'is' if len(self._woken) == 1 else 'are'} up.")
            self._woken.clear()
        if self._abed and self._may_tell("abed", record.step, REVIEW_S):
            verb = "has" if len(self._abed) == 1 else "have"
            lines.append(f"{_listed(self._abed)} {verb} gone to sleep.")
            self._abed.clear()
        return lines

    def _crowds(self, record: StepRecord) -> list[str]:
        """Report places where many residents have gathered, except homes."""
        lines = []
        for place in sorted(self._entered):
            if not place[0] or place[0] in self._homes:
                continue
            there = sorted(name for name, at in self._place.items() if at == place)
            reached = max((number for number in CROWDS if number <= len(there)), default=0)
            if reached and self._may_tell((place, reached), record.step, CROWD_QUIET_S):
                lines.append(f"{len(there)} people are {_at(place)}: {_listed(there)}.")
        return lines

    def _talk(self, event: Event) -> list[str]:
        told = self._told(event)
        if not told:
            if not self._may_tell(CONVERSATION, event.step, TALK_QUIET_S):
                return []
            middle = len(event["lines"]) // 2
            told = [_quote(speaker, text) for speaker, text in event["lines"][middle : middle + 2]]
        where = _at(self._place[event.source])
        about = event["about"]
        return [f"{event.source} and {event['partner']} talk {where} about {about}.", *told]

    def _told(self, event: Event) -> list[str]:
        """The lines in which news is told for the first time, or has spread far."""
        two = (event.source, event["partner"])
        lines = []
        for turn, (speaker, text) in enumerate(event["lines"]):
            hearer = two[1] if speaker == two[0] else two[0]
            for news, knowing in self._knowing.items():
                start = text.find(news.rstrip("."))
                if start < 0 or hearer in knowing:
                    continue
                knowing |= {speaker, hearer}
                if self._may_tell(news, 0, 0):
                    lines.append(_quote(speaker, text[_sentence_before(text, start) :]))
                    for _, answer in event["lines"][turn + 1 : turn + 2]:
                        lines += self._reaction(hearer, answer)
                if len(knowing) in KNOWING:
                    lines.append(f"{MARGIN}({len(knowing)} people know now: {news})")
        return lines

    def _reaction(self, speaker: str, text: str) -> list[str]:
        """The beginning of an answer, up to news that it contains."""
        own = [text.find(news.rstrip(".")) for news in self._knowing]
        end = min((_sentence_before(text, start) for start in own if start >= 0), default=None)
        begins = " ".join(re.split(r"(?<=[.!?]) ", text[:end].strip())[:2])
        return [_quote(speaker, begins)] if begins else []

    def _may_tell(self, what: object, step: Step, quiet_s: float) -> bool:
        """Whether `what` may be reported; if so, the interval `quiet_s` starts again.

        With a `quiet_s` of 0 it is reported only once.
        """
        if step < self._silent_until.get(what, 0) or (not quiet_s and what in self._silent_until):
            return False
        self._silent_until[what] = step + round(quiet_s / self._world.step_s)
        return True


def _quote(speaker: str, text: str) -> str:
    return f"{MARGIN}{speaker}: “{text}”"


def _sentence_before(text: str, place: int) -> int:
    """The index at which the sentence that ends just before `place` begins."""
    return max(text.rfind(mark, 0, max(0, place - 2)) + 2 for mark in (". ", "! ", "? ", "\0 "))


def _at(place: tuple[str, str]) -> str:
    """A place's name with its preposition and article."""
    sector, town = place
    beyond = f" of {town}" if town else ""
    if not sector:
        return f"in the street{beyond}"
    article = "the " if sector.endswith(("Café", "Cafe", "Inn", "Pub", "Bar", "Lodge")) else ""
    return f"{'on' if sector.endswith('Green') else 'at'} {article}{sector}{beyond}"


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    if len(others) > NAMES_MOST:
        return f"{', '.join(others[:NAMES_MOST])} and {len(others) + 1 - NAMES_MOST} others"
    return f"{', '.join(others)} and {last}" if others else last
