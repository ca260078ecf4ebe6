"""A generative agent (Park et al. 2023): perceives, remembers, plans, reacts, talks and reflects.

Its parts:

    perceiving.py   new events and their importance
    reacting.py     the decision to talk to another resident, or to wait
    talking.py      its turns in a conversation, and the memories of it
    planning.py     its day, hours and tasks; the place of the next activity
    reflecting.py   conclusions after enough important events
    interviewing.py answers to an interviewer, who is not of the town
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from metropolis.llm.agent import LLM
from metropolis.types import Position
from metropolis.world.base import Agent
from metropolis.worlds.smallville import (
    interviewing,
    perceiving,
    planning,
    reacting,
    reflecting,
    talking,
)
from metropolis.worlds.smallville.embedding import Embedder, hashed_words
from metropolis.worlds.smallville.geography import MOVES, Atlas, Tile
from metropolis.worlds.smallville.memory import Memory, Node
from metropolis.worlds.smallville.profile import Profile
from metropolis.worlds.smallville.state import Activity, Day, Talk, day_of
from metropolis.worlds.smallville.world import START, Action, Observation, SmallVille

RELATION_IMPORTANCE, MEMORY_IMPORTANCE, NEWS_IMPORTANCE, SECRET_IMPORTANCE = 4, 4, 6, 7
WHISPER_IMPORTANCE = 8
_STEPS = {move: Action(move=move) for move in MOVES}

FIRST_DAY = START.date()


@dataclass
class Resident(Agent):
    """A resident of a town; all its state except `_atlas` and `_embed` is saved."""

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
    waiting_until_s: int = 0
    talk: Talk | None = None
    """Its current conversation."""
    talked: dict[str, int] = field(default_factory=dict)
    """Name -> the time at which the last conversation with that resident ended."""
    recent: list[str] = field(default_factory=list)
    """The last perceived events, which are not new to it."""
    unreflected: int = reflecting.IMPORTANCE_BUDGET
    """The importance that remains until it reflects."""
    now_s: int = 0
    """The time of its last step."""

    def __post_init__(self) -> None:
        self.name = self.profile.name
        self.goal = self.profile.goal
        for text, importance in _known(self.profile):
            self.memory.add(Node("thought", text, 0, importance, self.name, "knows", text))
        for name, text in self.profile.relations.items():
            self.memory.add(Node("thought", text, 0, RELATION_IMPORTANCE, self.name, "knows", name))

    async def proceed(self, observation: Observation, llm: LLM) -> Action | None:
        """Run one step; None: the resident continues its activity in place."""
        now_s, here = observation.clock_s, (observation.x, observation.y)
        self.now_s = now_s
        if observation.conversation is not None:
            await talking.remember(self, observation.conversation, now_s, llm)
        if self.talk is not None:
            if now_s < self.talk.until_s:
                return None
            await talking.look_back(self, now_s, llm)
        if day_of(now_s) != self.day.number:
            await planning.begin_day(self, now_s, llm)
        if self.abed and now_s < self.activity.until_s:
            return None
        fresh = await perceiving.perceive(self, observation, llm)
        partner = await reacting.react(self, observation, fresh, now_s, llm) if fresh else ""
        begun = None
        if now_s >= self.activity.until_s:
            begun = await planning.next_activity(self, here, now_s, llm)
        elif self.activity.asleep and here == self.activity.goal:
            begun = planning.fall_asleep(self)
        lay, self.abed = self.abed, begun is not None and begun.asleep
        if lay and self.abed:
            return None
        thoughts = await reflecting.reflect(self, now_s, llm) if self.unreflected <= 0 else ()
        move = "stay"
        if not partner and now_s >= self.waiting_until_s:
            move = self._atlas.toward(here, self.activity.goal)
        if begun or partner or thoughts:
            return Action(move, begun, partner, thinks=tuple(thoughts))
        return _STEPS[move] if move != "stay" else None

    async def answer(self, question: Any, llm: LLM) -> Any:
        """Answer a question of a conversation."""
        return await talking.answer(self, question, llm)

    async def interview(self, question: str, llm: LLM) -> str:
        """Answer a question of an interviewer."""
        return await interviewing.answer(self, question, llm)

    def whisper(self, text: str) -> None:
        """Remember what an inner voice says."""
        node = Node("thought", text, self.now_s, WHISPER_IMPORTANCE, self.name, "knows", text)
        self.memory.add(node)

    def intent(self, position: Position) -> Iterator[Position]:
        """The way to its activity, unless it talks or waits."""
        if self.abed or self.talk is not None:
            return
        now_s, here = self.now_s, (int(position[0]), int(position[1]))
        while here != self.activity.goal:
            now_s += int(SmallVille.step_s)
            if now_s >= self.waiting_until_s:
                dx, dy = MOVES[self._atlas.toward(here, self.activity.goal)]
                if not dx and not dy:
                    return
                here = here[0] + dx, here[1] + dy
            yield here

    @property
    def atlas(self) -> Atlas:
        """The resident's knowledge of the town."""
        return self._atlas

    @property
    def embed(self) -> Embedder:
        """The embedding of texts."""
        return self._embed

    @property
    def bed(self) -> Tile:
        """The tile on which it sleeps."""
        return self.profile.at


def _known(profile: Profile) -> list[tuple[str, int]]:
    """The memories before the first step, with their importance."""
    return [
        *((text, MEMORY_IMPORTANCE) for text in profile.memories),
        *((f"News: {text}", NEWS_IMPORTANCE) for text in profile.news.values()),
        *((f"Secret: {text}", SECRET_IMPORTANCE) for text in profile.secrets.values()),
    ]
