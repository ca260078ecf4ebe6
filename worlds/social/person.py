"""An agent with interests that reads, reacts and writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from metropolis import Agent
from metropolis.llm.base import LLMError

TOPICS = {
    "bread": "baking bread at home",
    "birds": "the birds at the window",
    "bikes": "cycling to work",
    "books": "the book on the bedside table",
    "garden": "the garden and its slugs",
    "music": "the band's rehearsal",
    "weather": "this odd weather",
    "trains": "the trains, and how late they are",
}
REACTION = {
    "type": "object",
    "properties": {
        "like": {"type": "integer", "minimum": 0},
        "share": {"type": "boolean"},
    },
    "required": ["like", "share"],
}
BORED = 4
"""Consecutive posts without a like after which a person is left."""


@dataclass
class Person(Agent):
    """Opens the feed at times, reacts to new posts, and writes posts at times."""

    name: str
    interests: list[str]
    talkative: float
    """Probability of a post in a step."""
    curious: float
    """Probability of opening the feed in a step."""
    read: set[str] = field(default_factory=set)
    displeased: dict[str, int] = field(default_factory=dict)
    """Name of the sharer -> consecutive posts without a like."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        """Read, then write, so that a post can refer to what was read."""
        action = {"post": {"topic": "", "text": ""}, "like": "", "share": "", "follow": ""}
        mood = self.random.random(), self.random.random(), self.random.random()
        self.read &= {post["id"] for post in observation["feed"]}  # removed posts do not return
        new = [post for post in observation["feed"] if post["id"] not in self.read][-5:]
        if new and mood[0] < self.curious:
            await self._react(new, observation, action, llm)
        if mood[1] < self.talkative:
            topic = self.random.choice(self.interests)
            action["post"] = {"topic": topic, "text": await self._write(topic, new, llm)}
        elif not action["follow"] and mood[2] < 0.01:
            strangers = set(observation["acquaintances"]) - set(observation["follows"])
            action["follow"] = min(strangers, default="")
        return action

    async def _react(
        self, new: list[Any], observation: Any, action: dict[str, Any], llm: Any
    ) -> None:
        posts = "\n".join(f"{i}. [{post['topic']}] {post['text']}" for i, post in enumerate(new, 1))
        answer = await llm.chat(
            f"You are {self.name}. You care about {' and '.join(self.interests)}. New in your feed:"
            f"\n{posts}\nWhich one do you like best (0: none)? Would you share it?",
            function="react",
            max_tokens=40,
            json_schema=REACTION,
        )
        try:
            reaction = answer.json()
            liked, share = int(reaction["like"]), bool(reaction["share"])
        except (LLMError, KeyError, TypeError, ValueError):
            liked, share = 0, False  # an invalid answer likes nothing
        self.read |= {post["id"] for post in new}
        if 1 <= liked <= len(new):
            action["like"] = new[liked - 1]["id"]
            action["share"] = action["like"] if share else ""
        for number, post in enumerate(new, 1):
            sharer = post["sharer"]
            self.displeased[sharer] = 0 if number == liked else self.displeased.get(sharer, 0) + 1
        tired = sorted(name for name, times in self.displeased.items() if times >= BORED)
        if tired and tired[0] in observation["follows"]:
            action["follow"] = tired[0]
            self.displeased[tired[0]] = 0

    async def _write(self, topic: str, new: list[Any], llm: Any) -> str:
        lately = f" Lately you read: {new[-1]['text']}" if new else ""
        answer = await llm.chat(
            f"You are {self.name}. Write a post of one sentence about {TOPICS[topic]}.{lately}",
            function="write",
            max_tokens=60,
        )
        return str(answer.text).strip()[:600]
