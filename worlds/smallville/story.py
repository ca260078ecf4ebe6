"""A run as readable text: who is awake, meetings, conversations, and how news spreads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metropolis.types import Step
from metropolis.world.entities import AGENT, Event
from metropolis.world.record import StepRecord
from metropolis.worlds.smallville.dialogue import CONVERSATION
from metropolis.worlds.smallville.news import Spread, sentences, tells
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

    News and secrets are those of residents' profiles (`news.py`).
    """

    def __init__(self, world: SmallVille, residents: Sequence[Profile]) -> None:
        self._world = world
        self._spread = Spread(residents, world.start.date())
        self._homes = {resident.home for resident in residents}
        beginnings = {resident.name: world.beginning(resident) for resident in residents}
        self._place = {name: world.sector(*at) for name, (at, _) in beginnings.items()}
        self._asleep = {name: doing.asleep for name, (_, doing) in beginnings.items()}
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
        lines = []
        self._spread.begin(self._world.date_at(event.step))
        for told in self._spread.listen(event):
            if self._may_tell(told.news, 0, 0):
                speaker, text = event["lines"][told.turn]
                lines.append(_quote(speaker, self._told_part(text, told.news)))
                for _, answer in event["lines"][told.turn + 1 : told.turn + 2]:
                    lines += self._reaction(told.hearer, answer)
            count = len(self._spread.knowing[told.news])
            if count in KNOWING:
                lines.append(f"{MARGIN}({count} people know now: {self._spread.texts[told.news]})")
        return lines

    def _told_part(self, text: str, mark: str) -> str:
        """The end of `text` that tells the fact of `mark`, from the sentence before it."""
        parts = sentences(text)
        first = max(start for start in range(len(parts)) if tells(" ".join(parts[start:]), mark))
        return " ".join(parts[max(0, first - 1) :])

    def _reaction(self, speaker: str, text: str) -> list[str]:
        """The beginning of an answer, up to news that it contains."""
        own: list[str] = []
        for sentence in sentences(text)[:2]:
            if any(tells(sentence, mark) for mark in self._spread.texts):
                break
            own.append(sentence)
        return [_quote(speaker, " ".join(own))] if own else []

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
