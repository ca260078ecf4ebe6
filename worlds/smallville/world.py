"""The laws of the town: perception, movement and conversations of residents."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gymnasium import spaces

from metropolis.maps.map import GridMap
from metropolis.rules.metrics import GenAgent
from metropolis.types import MetropolisError
from metropolis.world.appearance import Appearance, Memories, Schedule
from metropolis.world.base import World
from metropolis.world.entities import AGENT, Entity, Event
from metropolis.world.spaces import Choice, FreeText, Maybe, Record
from metropolis.world.transaction import Member, Transaction
from metropolis.world.view import View
from metropolis.worlds.smallville.dialogue import CONVERSATION, Line, converse, pairs_of
from metropolis.worlds.smallville.geography import MOVES, Tile
from metropolis.worlds.smallville.profile import Profile
from metropolis.worlds.smallville.settings import EXPORTED_SETTINGS, EXPORTED_WORKPLACE, PRESETS

if TYPE_CHECKING:
    from metropolis.worlds.smallville.past import Past

NAME_LETTERS = 200
TEXT_LETTERS = 2000
START = datetime(2023, 2, 13, 6)
SLEEPING = "sleeping"
SAID, THOUGHT = "said", "thought"
"""Kinds of events; a thought is for the story only."""


@dataclass(frozen=True, slots=True)
class Doing:
    """A visible activity."""

    what: str
    emoji: str = ""
    place: str = ""
    """The place of the activity, as `sector: arena`; the resident may be on the way there."""
    thing: str = ""
    """The object in use."""
    thing_doing: str = ""
    """The visible state of that object."""
    asleep: bool = False
    until_s: int = 0
    """The time at which the activity is planned to end; 0: unknown."""


@dataclass(frozen=True, slots=True)
class Action:
    """A resident's action in a step; None stands for no change."""

    move: str = "stay"
    doing: Doing | None = None
    """A new activity; None: unchanged."""
    talk_to: str = ""
    """The resident with whom to start a conversation."""
    say: str = ""
    """A text said aloud to all residents in range."""
    thinks: tuple[str, ...] = ()
    """Private conclusions for the story, which no resident perceives."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Another resident in sight."""

    name: str
    x: int
    y: int
    doing: str
    place: str
    thing: str
    thing_doing: str
    asleep: bool
    until_s: int
    """The time at which the activity `doing` is planned to end; 0: unknown."""
    free: bool
    """Whether the resident is not in a conversation."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation of the observer that has just begun, with all its lines."""

    partner: str
    about: str
    lines: tuple[Line, ...]
    until_s: int


@dataclass(frozen=True, slots=True)
class Observation:
    """A resident's perception at the beginning of a step."""

    clock_s: int
    """Simulated seconds since the midnight before step 0."""
    x: int
    y: int
    nearby: tuple[Seen, ...] = ()
    """The other residents in sight, ordered by name."""
    heard: tuple[Line, ...] = ()
    """The lines said aloud in range in the previous step."""
    conversation: Conversation | None = None


class SmallVille(World):
    """A town of walls, doors and rooms. Perception is a square around a resident, cut to its room.

    `perception_radius` is the largest of the residents' settings.
    """

    name = "smallville"
    max_velocity = 1
    step_s = 10.0
    appearance = Appearance(
        speech={SAID: "text"},
        dialogue={CONVERSATION: "lines"},
        thought={THOUGHT: "text"},
        told={CONVERSATION: "partner"},
        memories=Memories("memory.nodes"),
        details={
            "vision_r": "profile.settings.vision_tiles",
            "age": "profile.age",
            "innate": "profile.traits",
            "learned": "profile.background",
            "currently": "goal",
            "lifestyle": "profile.habits",
            "att_bandwidth": "profile.settings.attention_bandwidth",
            "retention": "profile.settings.retention",
            "daily_req": "day.outline",
            "recency_w": "profile.settings.recency_weight",
            "relevance_w": "profile.settings.relevance_weight",
            "importance_w": "profile.settings.importance_weight",
            "recency_decay": "profile.settings.recency_decay",
            "importance_trigger_max": "profile.settings.reflection_threshold",
            "importance_trigger_curr": "unreflected",
            "act_obj_description": "activity.thing_doing",
            EXPORTED_SETTINGS: "profile.settings",
            EXPORTED_WORKPLACE: "profile.workplace",
        },
        factors={  # the published code multiplies its weights with these three
            "recency_w": 1 / PRESETS["code-1.0"].recency_weight,
            "relevance_w": 1 / PRESETS["code-1.0"].relevance_weight,
            "importance_w": 1 / PRESETS["code-1.0"].importance_weight,
        },
        addresses={
            "living_area": ["profile.home", "profile.room"],
            "act_address": ["activity.place", "activity.thing"],
        },
        goal="activity.goal",
        partner="talk.partner",
        until_s=["talk.until_s", "activity.until_s"],
        schedule=Schedule("day.hours", "day.tasks"),
        places="known",
    )

    def __init__(
        self,
        grid: GridMap,
        residents: Sequence[Profile],
        *,
        start: datetime = START,
        pasts: Mapping[str, Past] = MappingProxyType({}),
    ) -> None:
        if start.tzinfo is not None:
            raise MetropolisError(
                f"the start is {start.isoformat()}; it should be a local time without a time zone, "
                f"such as {START.isoformat()}"
            )
        self.map = grid
        self.start = start
        self.metric = GenAgent(grid.walls, grid.arenas, self.max_velocity)
        self._residents = tuple(residents)
        self._vision_tiles = {of.name: of.settings.vision_tiles for of in residents}
        self.perception_radius = max(self._vision_tiles.values(), default=0)
        self._pasts = pasts
        self._start_s = (start - datetime.combine(start.date(), time())).seconds
        self._walls = grid.walls.tobytes()
        self._seen_before: dict[str, tuple[Entity, Seen]] = {}
        """Name -> a body, and what there is to see of it."""
        name, text, clock = FreeText(NAME_LETTERS), FreeText(TEXT_LETTERS), spaces.Discrete(1 << 40)
        tile: dict[str, Any] = {
            "x": spaces.Discrete(grid.width),
            "y": spaces.Discrete(grid.height),
        }
        flag, line = Choice([False, True]), Record(Line, speaker=name, text=text)
        self.action_space = Maybe(
            Record(
                Action,
                move=Choice(list(MOVES)),
                doing=Maybe(
                    Record(
                        Doing,
                        what=text,
                        emoji=name,
                        place=name,
                        thing=name,
                        thing_doing=text,
                        asleep=flag,
                        until_s=clock,
                    )
                ),
                talk_to=Choice(["", *(resident.name for resident in residents)]),
                say=text,
            )
        )
        self.observation_space = Record(
            Observation,
            clock_s=clock,
            **tile,
            nearby=spaces.Sequence(
                Record(
                    Seen,
                    name=name,
                    **tile,
                    doing=text,
                    place=name,
                    thing=name,
                    thing_doing=text,
                    asleep=flag,
                    until_s=clock,
                    free=flag,
                )
            ),
            heard=spaces.Sequence(line),
            conversation=Maybe(
                Record(
                    Conversation,
                    partner=name,
                    about=text,
                    lines=spaces.Sequence(line),
                    until_s=clock,
                )
            ),
        )

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        """The residents as they are at first. There are no options."""
        return [
            Entity(resident.name, at, AGENT, _body(doing))
            for resident in self._residents
            for at, doing in [self.beginning(resident)]
        ]

    def beginning(self, resident: Profile) -> tuple[Tile, Doing]:
        """Where a resident is at step 0, and its visible activity: asleep, unless it has a past."""
        past, place = self._pasts.get(resident.name), f"{resident.home}: {resident.room}"
        asleep = Doing(SLEEPING, "💤", place, "bed", asleep=True)
        if past is None:
            return resident.at, asleep
        return past.at or resident.at, past.doing or asleep

    def observe(self, view: View) -> Observation:
        """The others in sight, speech, and a conversation that has begun."""
        x, y = view.position
        events = view.events()
        bodies: Iterable[Entity] = view.agents()
        radius = self._vision_tiles[view.name]
        if radius < self.perception_radius:
            bodies = [
                body
                for body in bodies
                if max(abs(body.position[0] - x), abs(body.position[1] - y)) <= radius
            ]
        return Observation(
            self.clock_s(view.step),
            int(x),
            int(y),
            tuple(self._seen(body, view.step) for body in bodies),
            tuple(Line(event.source, event["text"]) for event in events if event.kind == SAID),
            self._conversation(view.name, events),
        )

    def resolve(self, cluster: Transaction) -> Awaitable[None] | None:
        """Hold the conversations on which two residents agree; all others move and act."""
        members = sorted(cluster, key=lambda member: member.name)
        if any(member.action is not None and member.action.talk_to for member in members):
            return self._resolve_talks(cluster, members)
        for member in members:
            self._act(member)
        return None

    def clock_s(self, step: int) -> int:
        """Simulated seconds from the midnight before step 0 to the beginning of `step`."""
        return self._start_s + int(step * self.step_s)

    def date_at(self, step: int) -> date:
        """The date at the beginning of `step`."""
        return self.start.date() + timedelta(seconds=self.clock_s(step))

    async def _resolve_talks(self, cluster: Transaction, members: Sequence[Member]) -> None:
        talking = await converse(pairs_of(cluster, members), self.step_s)
        for member in members:
            if member.name not in talking:
                self._act(member)

    def _act(self, member: Member) -> None:
        action = member.action
        if action is None:
            return
        dx, dy = MOVES[action.move]
        x, y = int(member.position[0]) + dx, int(member.position[1]) + dy
        if (dx or dy) and self._may_enter(member, (x, y)):
            member.move((x, y))
        if action.doing is not None and member.me["busy_until"] <= member.step:
            member.write(**_body(action.doing))
        if action.say:
            member.emit(SAID, text=action.say[:TEXT_LETTERS])
        for thought in action.thinks:
            member.emit(THOUGHT, text=thought)

    def sector(self, x: int, y: int) -> tuple[str, str]:
        """The sector of a tile, empty outside of all, and its town, empty if there is only one."""
        assert self.map is not None
        return self.map.arena_names[self.map.arenas[y, x]].partition(": ")[0], ""

    def _may_enter(self, member: Member, tile: Tile) -> bool:
        """Whether `member` may step onto the neighbouring `tile` in this step."""
        x, y = tile
        assert self.map is not None
        return self.map.contains(tile) and not self._walls[y * self.map.width + x]

    def _seen(self, body: Entity, step: int) -> Seen:
        state = body.state
        free = state["busy_until"] <= step
        before = self._seen_before.get(body.name)
        if before is not None and before[0] is body and before[1].free == free:
            return before[1]
        x, y = body.position
        seen = Seen(
            body.name,
            int(x),
            int(y),
            state["doing"],
            state["place"],
            state["thing"],
            state["thing_doing"],
            state["asleep"],
            state["until_s"],
            free,
        )
        self._seen_before[body.name] = body, seen
        return seen

    def _conversation(self, name: str, events: Sequence[Event]) -> Conversation | None:
        for event in events:
            if event.kind == CONVERSATION and name in (event.source, event["partner"]):
                partner = event["partner"] if name == event.source else event.source
                lines = tuple(Line(speaker, text) for speaker, text in event["lines"])
                until_s = self.clock_s(event["until"])
                return Conversation(partner, event["about"], lines, until_s)
        return None


def _body(doing: Doing) -> dict[str, Any]:
    """The state of a body that is not in a conversation."""
    return {
        "doing": doing.what[:TEXT_LETTERS],
        "emoji": doing.emoji[:NAME_LETTERS],
        "place": doing.place[:NAME_LETTERS],
        "thing": doing.thing[:NAME_LETTERS],
        "thing_doing": doing.thing_doing[:TEXT_LETTERS],
        "asleep": doing.asleep,
        "until_s": doing.until_s,
        "busy_until": 0,
        "partner": "",
    }
