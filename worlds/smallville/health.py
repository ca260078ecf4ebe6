"""Measures of a run's health: laws of the town, daily rhythm, conversations, memories, news."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from metropolis.llm.base import Request
from metropolis.world.entities import AGENT
from metropolis.world.record import StepRecord
from metropolis.worlds.smallville.dialogue import CONVERSATION
from metropolis.worlds.smallville.memory import Memory
from metropolis.worlds.smallville.news import Spread, sentences
from metropolis.worlds.smallville.profile import Profile
from metropolis.worlds.smallville.state import DAY_S, HOUR_S
from metropolis.worlds.smallville.world import SmallVille

_STATEMENT = re.compile(r"^\d+\. (.+)$", re.MULTILINE)
_RATED = re.compile(r"^(?:Event|Thought|Conversation): (.+)$", re.MULTILINE)
_PLANNED = re.compile(r"^\[\d\d:\d\d-\d\d:\d\d\] .", re.MULTILINE)


@dataclass
class DayFigures:
    """Counts of one day of the town's clock; the first and the last may be incomplete."""

    steps: int = 0
    conversations: int = 0
    utterances: int = 0
    calls: int = 0
    asleep: int = 0
    """Agent-steps of residents who are asleep."""
    shared: int = 0
    """Agent-steps of residents who share their tile with others."""
    at_work: int = 0
    """Agent-steps of residents who are awake in their workplace."""
    sentences: int = 0
    """Number of sentences spoken from the first day to the end of this one."""
    distinct: int = 0
    """Number of distinct sentences among `sentences`."""
    spoken: set[str] = field(default_factory=set)
    """The distinct sentences of this day."""
    heard: int = 0
    """Number of times that a resident heard a fact for the first time."""
    knowing: dict[str, int] = field(default_factory=dict)
    """Mark of a fact -> number of residents who know it at the end of the day."""


class Health:
    """Reads the steps of a run in order, and its requests; `report` returns the figures."""

    def __init__(self, world: SmallVille, residents: Sequence[Profile]) -> None:
        self._world, self._residents = world, residents
        self._spread = Spread(residents, world.start.date())
        beginnings = {resident.name: world.beginning(resident) for resident in residents}
        self._at = {name: at for name, (at, _) in beginnings.items()}
        self._asleep = {name: doing.asleep for name, (_, doing) in beginnings.items()}
        self._workplace = {one.name: one.workplace for one in residents if one.workplace}
        self._said = 0
        self._shared, self._working = 0, 0
        """Number of residents who share their tile with others, and who are at work, at present."""
        self.days: dict[int, DayFigures] = {}
        self._whole_day = round(DAY_S / world.step_s)
        """Number of steps of a whole day."""
        self.walls_crossed = 0
        self.spoken: Counter[str] = Counter()
        """Sentence -> number of times that it was said."""
        self.statements = self.repeated_statements = 0
        """Number of memories in prompts, and of those that repeat another in the same prompt."""
        self.plans = self.empty_plans = 0
        """Number of requests to revise a plan, and of those whose plan was empty."""
        self.ratings: Counter[tuple[int, str, str]] = Counter()

    def watch(self, request: Request) -> None:
        """Read a request; the order of requests does not matter."""
        self._day(request.step).calls += 1
        if request.function.endswith("_poignancy"):
            if rated := _RATED.search(request.text):
                self.ratings[request.agent, request.function, rated[1]] += 1
            return
        if request.function == "new_decomp_schedule":
            self.plans += 1
            self.empty_plans += not _PLANNED.search(request.text)
        statements = _STATEMENT.findall(request.text)
        self.statements += len(statements)
        self.repeated_statements += len(statements) - len(set(statements))

    def read(self, record: StepRecord) -> None:
        """Read the next step."""
        self._read_writes(record)
        self._spread.begin(self._world.date_at(record.step))
        day = self._day(record.step)
        day.steps += 1
        day.asleep += sum(self._asleep.values())
        day.at_work += self._working
        day.shared += self._shared
        for event in record.events:
            if event.kind != CONVERSATION:
                continue
            day.conversations += 1
            day.utterances += len(event["lines"])
            day.heard += sum(1 for _ in self._spread.listen(event))
            for _, text in event["lines"]:
                said = sentences(text)
                self.spoken.update(said)
                day.spoken.update(said)
                self._said += len(said)
        day.sentences, day.distinct = self._said, len(self.spoken)
        day.knowing = {mark: len(names) for mark, names in self._spread.knowing.items()}

    def report(self, memories: Mapping[str, Memory]) -> dict[str, Any]:
        """All figures; `memories` are the residents', by name, at the end of the run.

        Those that compare days, and the means of hours, are of whole days; None: there are too few.
        """
        texts = [[(node.kind, node.text) for node in own.nodes] for own in memories.values()]
        nodes = sum(map(len, texts))
        duplicates = nodes - sum(len(set(own)) for own in texts)
        ratings, said = self.ratings.total(), self._said
        days = [self._day_report(number) for number in sorted(self.days)]
        whole = [day for day in days if self.days[day["day"] - 1].steps == self._whole_day]
        talks = [day["conversations"] for day in whole]
        fresh = [day["sentences_of_day"] for day in whole]
        agent_steps = sum(day.steps for day in self.days.values()) * len(self._at)
        return {
            "agents": len(self._at),
            "hours": sum(day.steps for day in self.days.values()) * self._world.step_s / HOUR_S,
            "walls_crossed": self.walls_crossed,
            "tiles_shared": _share(sum(day.shared for day in self.days.values()), agent_steps),
            "tiles_shared_by_day": _mean([day["tiles_shared"] for day in whole]),
            "plans_revised": self.plans,
            "empty_plans": self.empty_plans,
            "memories": nodes,
            "duplicate_memories": duplicates,
            "recalled": self.statements,
            "duplicates_recalled": _share(self.repeated_statements, self.statements),
            "ratings": ratings,
            "texts_rated_again": _share(ratings - len(self.ratings), ratings),
            "sentences": said,
            "distinct_sentences": _share(len(self.spoken), said),
            "later_conversations": _later(talks, _mean(talks[1:])),
            "last_conversations": _later(talks, talks[-1] if talks else None),
            "later_sentences": _later(fresh, _mean(fresh[1:])),
            "sleep_hours": _mean([day["sleep_hours"] for day in whole]),
            "work_hours": _mean([day["work_hours"] for day in whole if self._workplace]),
            "news_heard": min((day["news_heard"] for day in whole), default=None),
            "days": days,
        }

    def _read_writes(self, record: StepRecord) -> None:
        changed = False
        for name, body in record.writes.items():
            if body is None or body.kind != AGENT:
                continue
            x, y = int(body.position[0]), int(body.position[1])
            was_x, was_y = self._at[name]
            blocked = self._world.map is not None and self._world.map.walls[y, x]
            self.walls_crossed += bool(blocked or abs(x - was_x) + abs(y - was_y) > 1)
            self._at[name], self._asleep[name] = (x, y), body["asleep"]
            changed = True
        if changed:
            tiles = Counter(self._at.values())
            self._shared = sum(count for count in tiles.values() if count > 1)
            self._working = sum(
                not self._asleep[name] and self._world.sector(*self._at[name])[0] == place
                for name, place in self._workplace.items()
            )

    def _day(self, step: int) -> DayFigures:
        return self.days.setdefault(self._world.clock_s(step) // DAY_S, DayFigures())

    def _day_report(self, number: int) -> dict[str, Any]:
        day, step_s = self.days[number], self._world.step_s
        hours = step_s / HOUR_S
        return {
            "day": number + 1,
            "hours": day.steps * hours,
            "calls": day.calls,
            "conversations": day.conversations,
            "utterances": day.utterances,
            "distinct_sentences": _share(day.distinct, day.sentences),
            "sentences_of_day": len(day.spoken),
            "news_heard": day.heard,
            "tiles_shared": _share(day.shared, day.steps * len(self._at)),
            "sleep_hours": day.asleep * hours / len(self._at),
            "work_hours": day.at_work * hours / max(1, len(self._workplace)),
            "knowing": day.knowing,
        }


def _later(counts: Sequence[int], later: float | None) -> float | None:
    """`later` relative to the count of the first whole day; None: there is no later one."""
    return None if len(counts) < 2 or later is None else _share(later, counts[0])


def _mean(values: Sequence[float]) -> float | None:
    return _share(sum(values), len(values))


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
