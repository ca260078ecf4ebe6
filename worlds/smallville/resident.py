"""A generative agent (Park et al. 2023): perceives, remembers, plans, reacts, talks and reflects.

Its parts:

    perceiving.py   new events and their importance
    reacting.py     the decision to talk to another resident, or to wait
    talking.py      its turns in a conversation, and the memories of it
    planning.py     its day, hours and tasks; the place of the next activity
    targets.py      the tile of the next activity
    reflecting.py   conclusions after enough important events
    interviewing.py answers to an interviewer, who is not of the town
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import InitVar, dataclass, field, replace
from datetime import date, timedelta
from typing import Any

from metropolis.llm.agent import LLM
from metropolis.types import Position
from metropolis.world.base import UNDECIDED, Agent, Tables, Undecided
from metropolis.worlds.smallville import (
    interviewing,
    perceiving,
    planning,
    reacting,
    reflecting,
    talking,
    targets,
)
from metropolis.worlds.smallville.embedding import Embedder, hashed_words
from metropolis.worlds.smallville.geography import MOVES, Atlas, Tile
from metropolis.worlds.smallville.memory import Memory, Node, created
from metropolis.worlds.smallville.past import Past
from metropolis.worlds.smallville.profile import Profile, facts_of
from metropolis.worlds.smallville.settings import Settings
from metropolis.worlds.smallville.spatial_memory import Known, first_known, learn
from metropolis.worlds.smallville.state import HOUR_S, Activity, Day, Talk, day_of
from metropolis.worlds.smallville.tables import tables_of
from metropolis.worlds.smallville.world import SLEEPING, START, Action, Observation

RELATION_IMPORTANCE, MEMORY_IMPORTANCE, NEWS_IMPORTANCE, SECRET_IMPORTANCE = 4, 4, 8, 7
WHISPER_IMPORTANCE = 8
_STEPS = {move: Action(move=move) for move in MOVES}

FIRST_DAY = START.date()


@dataclass
class Resident(Agent):
    """A resident of a town; all its state is saved, without the fields that begin with _."""

    profile: Profile
    _atlas: Atlas = field(repr=False)
    _embed: Embedder = field(default=hashed_words, repr=False)
    first_day: date = FIRST_DAY
    """The date of step 0."""
    name: str = ""
    goal: str = ""
    """Its present goal."""
    memory: Memory = field(default_factory=Memory, repr=False)
    day: Day = field(default_factory=Day, repr=False)
    activity: Activity = field(default_factory=Activity)
    abed: bool = True
    """Whether it sleeps in its bed."""
    talk: Talk | None = None
    """Its current conversation."""
    talked: dict[str, int] = field(default_factory=dict)
    """Name -> the time at which the last conversation with that resident ended."""
    recent: list[tuple[str, str, str]] = field(default_factory=list)
    """The triples of the events that it remembered last; equal events are not new to it."""
    unreflected: int = 0
    """The importance that is missing until it reflects."""
    known: Known = field(default_factory=dict, repr=False)
    """The places and objects that it knows of."""
    now_s: int = START.hour * HOUR_S
    """The time of its last step; before its first step the time of step 0."""
    _stood: Tile | None = field(default=None, repr=False)
    """The tile from which it last looked round."""
    _unnoticed: perceiving.Scene | None = field(default=None, repr=False)
    """The last scene in which nothing was new to it."""
    past: InitVar[Past | None] = None
    """What it has lived through before step 0."""

    def __post_init__(self, past: Past | None) -> None:
        self.name = self.profile.name
        self.goal = self.profile.goal
        self.unreflected = self.settings.reflection_threshold
        self.known = first_known(self.profile, self._atlas)
        if past is not None:
            self._remember(past)
        for text in self.profile.memories:
            self.memory.add(Node("thought", text, 0, MEMORY_IMPORTANCE, self.name, "knows", text))
        self._learn_facts(self.first_day, 0)
        for name, text in self.profile.relations.items():
            if not self.memory.has(text):
                node = Node("thought", text, 0, RELATION_IMPORTANCE, self.name, "knows", name)
                self.memory.add(node)

    def routine(self, observation: Observation) -> Action | Undecided | None:
        """The action of a step in which nothing is new to it; see `proceed`."""
        now_s, here = observation.clock_s, (observation.x, observation.y)
        talk, activity = self.talk, self.activity
        if (
            observation.conversation is not None
            or (talk is not None and now_s >= talk.until_s)
            or day_of(now_s) != self.day.number
        ):
            return UNDECIDED
        self.now_s = now_s
        self._look_round(here)
        if self.abed and now_s < activity.until_s:
            return None
        if (
            (talk is None and now_s >= activity.until_s)
            or self.unreflected <= 0
            or perceiving.notices(self, observation)
        ):
            return UNDECIDED
        begun = None
        if talk is None:
            if activity.asleep and here == activity.goal:
                begun = planning.fall_asleep(self)
            lay, self.abed = self.abed, begun is not None
            if lay and self.abed:
                return None
            targets.give_way(self, observation)
        move = self._atlas.toward(here, self._goal)
        if begun is not None:
            return Action(move, begun)
        return _STEPS[move] if move != "stay" else None

    async def proceed(self, observation: Observation, llm: LLM) -> Action | None:
        """Run one step; None: the resident continues its activity in place."""
        now_s, here = observation.clock_s, (observation.x, observation.y)
        self.now_s = now_s
        self._look_round(here)
        if observation.conversation is not None:
            await talking.remember(self, observation.conversation, observation, now_s, llm)
        if self.talk is not None and now_s >= self.talk.until_s:
            await talking.look_back(self, now_s, llm)
        if day_of(now_s) != self.day.number:
            if day_of(now_s) > 0:
                self._learn_facts(self.first_day + timedelta(days=day_of(now_s)), now_s)
            await planning.begin_day(self, now_s, llm)
        if self.abed and now_s < self.activity.until_s:
            return None
        fresh = await perceiving.perceive(self, observation, llm)
        begun, partner = None, ""
        if self.talk is None:
            if fresh:
                partner, begun = await reacting.react(self, observation, fresh, now_s, llm)
            if now_s >= self.activity.until_s:
                begun = await planning.next_activity(self, observation, now_s, llm)
            elif self.activity.asleep and here == self.activity.goal:
                begun = planning.fall_asleep(self)
            lay, self.abed = self.abed, begun is not None and begun.asleep
            if lay and self.abed:
                return None
            targets.give_way(self, observation)
        move = "stay" if partner else self._atlas.toward(here, self._goal)
        thoughts = await reflecting.reflect(self, now_s, llm) if self.unreflected <= 0 else ()
        if begun or partner or thoughts:
            return Action(move, begun, partner, thinks=tuple(thoughts))
        return _STEPS[move] if move != "stay" else None

    def _look_round(self, here: Tile) -> None:
        """Learn the places and objects within sight."""
        if here != self._stood:
            self._stood = here
            learn(self.known, self._atlas.sights(here, self.settings.vision_tiles))

    def _learn_facts(self, today: date, now_s: int) -> None:
        """Remember the news and secrets of the profile that are its since `today`."""
        for fact in facts_of(self.profile):
            since = max(fact.since or self.first_day, self.first_day)
            if since == today:
                kind = "Secret" if fact.secret else "News"
                importance = SECRET_IMPORTANCE if fact.secret else NEWS_IMPORTANCE
                text = f"{kind}: {fact.text}"
                self.memory.add(Node("thought", text, now_s, importance, self.name, "knows", text))

    async def answer(self, question: Any, llm: LLM) -> Any:
        """Answer a question of a conversation."""
        return await talking.answer(self, question, llm)

    async def interview(self, question: str, llm: LLM) -> str:
        """Answer a question of an interviewer."""
        return await interviewing.answer(self, question, llm)

    def _remember(self, past: Past) -> None:
        """Continue a life before step 0."""
        numbers = [self.memory.add(node) for node in past.memories]
        for node in past.memories:
            evidence = tuple(numbers[place] for place in node.evidence)
            self.memory.add(replace(node, evidence=evidence))
        learn(self.known, past.places)
        events = [node for node in past.memories if node.kind == "event"]
        newest = sorted(events, key=created)[-self.settings.retention :]
        self.recent = [(node.subject, node.predicate, node.object) for node in newest]
        self.talked = dict(past.talked)
        self.day, self.activity = deepcopy((past.day or self.day, past.activity or self.activity))
        if past.unreflected is not None:
            self.unreflected = past.unreflected
        self.abed = past.doing is None or past.doing.asleep

    def whisper(self, text: str) -> None:
        """Remember what an inner voice says."""
        node = Node("thought", text, self.now_s, WHISPER_IMPORTANCE, self.name, "knows", text)
        self.memory.add(node)

    def tables(self) -> Tables:
        """Its state, schedule, relations and newest memories."""
        return tables_of(self)

    def intent(self, position: Position) -> Iterator[Position]:
        """The tiles on the way to its activity, or to the meeting point of its conversation."""
        if self.abed:
            return
        here = (int(position[0]), int(position[1]))
        yield from self._atlas.walk(here, self._goal)[1:]

    @property
    def doing(self) -> str:
        """What it does at present: its conversation, sleep, or else the activity it is going to."""
        if self.talk is not None:
            return f"talking with {self.talk.partner} about {self.talk.about}"
        return SLEEPING if self.abed else self.activity.what

    @property
    def _goal(self) -> Tile:
        """The tile to which it walks."""
        return self.activity.goal if self.talk is None else self.talk.meeting

    def recall(self, question: str, count: int) -> list[Node]:
        """The `count` memories that come to its mind; changes their time of retrieval."""
        return self.memory.retrieve(question, count, self.now_s, self._embed, self.settings)

    @property
    def atlas(self) -> Atlas:
        """The map of the town; `known` is what the resident knows of it."""
        return self._atlas

    @property
    def embed(self) -> Embedder:
        """The embedding of texts."""
        return self._embed

    @property
    def settings(self) -> Settings:
        """How it perceives, remembers and reflects."""
        return self.profile.settings

    @property
    def bed(self) -> Tile:
        """The tile on which it sleeps."""
        return self.profile.bed or self.profile.at
