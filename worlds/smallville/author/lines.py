"""The next line of a conversation: an answer to the last line, and a new opening.

`talk.toml` holds pairs of an opening and the answers to it; a speaker answers the opening that it
recognises in the last line, and adds an unused opening.
"""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any
from zlib import crc32

from metropolis.worlds.smallville.author.prompt import CONFIDENCE, HERALDS, TOLD, Prompt, pick

LINES_LEAST, LINES_SPREAD = 9, 7
"""Minimum number of lines of a conversation before it closes, and the spread of that number."""
ASIDE_SHARE = 0.3
"""Probability of an aside after an answer."""
TOPIC_SHARE = 0.4
"""Probability of a favourite topic instead of small talk."""
LEAK_SHARE = 0.05
"""Probability per line of telling a secret."""
NEWS_MOST = 2
"""Maximum number of news that a speaker tells in a conversation."""


class Scene:
    """A conversation from the view of its next speaker."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.me = prompt.name
        self.other = prompt.between("say next to ", "?")
        setting = prompt.fact("Setting")
        self.place = setting.partition(" at ")[2].partition(";")[0]
        self.my_doing = prompt.between(f"; {self.me} was ", f" when meeting {self.other}")
        self.other_doing = setting.rpartition(", who was ")[2].rstrip(".")
        talk = prompt.between("Conversation so far:\n", "\n\nWhat does")
        self.lines = [line.partition(": ")[::2] for line in talk.splitlines() if ": " in line]
        self.said = " ".join(text for _, text in self.lines)
        self.mine = " ".join(text for speaker, text in self.lines if speaker == self.me)
        pair = " ".join(sorted((self.me, self.other))) + prompt.fact("Date")[:12]
        self.length = LINES_LEAST + crc32(pair.encode()) % LINES_SPREAD

    @property
    def untold(self) -> list[str]:
        """News that the other is not known to have."""
        known = " ".join(
            statement
            for statement in self.prompt.statements
            if f"told {self.other} " in statement or f"news from {self.other}:" in statement
        )
        return [
            news
            for news in self.prompt.news
            if news not in self.said and news not in known and not over(news, self.prompt.hour)
        ]

    @property
    def leaks(self) -> list[str]:
        """Secrets to tell a close acquaintance, except those about the acquaintance."""
        close = self.other in self.prompt.fact("Knows")
        secrets = self.prompt.secrets if close else []
        return [text for text in secrets if self.other not in text and text not in self.said]

    def fill(self, text: str) -> str:
        """`text` with placeholders replaced by the values of this scene."""
        doing = self.my_doing.split(" at the ")[0].split(" on Mill Green")[0]
        return (
            text.replace("{other}", self.other.split()[0])
            .replace("{place}", self.place.split(": ")[0])
            .replace("{doing}", doing or "what I was doing")
        )


def say(scene: Scene, random: Random) -> str:
    """The next line, in JSON."""
    words = talk_phrases()
    count = len(scene.lines)
    answer = _answer(scene, random) if count else _greeting(scene, random)
    if count and scene.lines[-1][1].endswith(_CLOSINGS):
        return _json(scene.fill(pick(words["farewells"], random)), True)
    opening = "" if count >= scene.length else _opening(scene, random)
    if not opening:
        opening = scene.fill(pick(words["closings"], random))
    return _json(f"{answer} {opening}".strip(), False)


def _greeting(scene: Scene, random: Random) -> str:
    hour = scene.prompt.hour
    part = "morning" if hour < 12 else "afternoon" if hour < 18 else "evening"
    return scene.fill(pick(talk_phrases()["greetings"][part], random))


def _answer(scene: Scene, random: Random) -> str:
    """An answer to the last line."""
    words, last = talk_phrases(), scene.lines[-1][1]
    if len(scene.lines) == 1:
        hello = scene.fill(pick(words["greetings"]["back"], random)) + " "
    else:
        hello = ""
    told = TOLD.search(last)
    if told:
        reactions = match_talk("reactions", told[1]) or words["surprise"]
        return hello + _fresh(reactions, scene, random)
    for pair in words["pairs"]:
        if pair["say"].partition("{")[0] in last:
            return hello + _fresh(pair["replies"], scene, random)
    answer = _fresh(words["interest" if _TOPIC.search(last) else "agreement"], scene, random)
    if random.random() < ASIDE_SHARE:
        answer += " " + _fresh(words["asides"], scene, random)
    return hello + answer


def _opening(scene: Scene, random: Random) -> str:
    """A new opening: news first, then favourite topics and suitable small talk."""
    words = talk_phrases()
    told = sum(len(TOLD.findall(text)) for who, text in scene.lines if who == scene.me)
    if scene.untold and told < NEWS_MOST and (scene.lines or random.random() < 0.5):
        return f"{pick(list(HERALDS), random)} {pick(scene.untold, random)}"
    if len(scene.lines) > 2 and scene.leaks and random.random() < LEAK_SHARE:
        return f"{CONFIDENCE} {pick(scene.leaks, random)}"
    openings = [scene.fill(pair["say"]) for pair in words["pairs"] if _suits(pair, scene)]
    topics = {
        re.sub(r"\b(?:his|her)\b", "my", topic): remark
        for topic, remark in scene.prompt.topics.items()
        if remark not in scene.said
    }
    if topics and (not openings or random.random() < TOPIC_SHARE):
        topic = pick(list(topics), random)
        return f"{pick(words['topics'], random).replace('{topic}', topic)} {topics[topic]}"
    return pick(openings, random) if openings else ""


def _suits(pair: dict[str, Any], scene: Scene) -> bool:
    """Whether an opening suits the place and time, and has not been used."""
    if pair["say"].partition("{")[0] in scene.said:
        return False
    first, last = pair.get("hours", (0, 24))
    if not first <= scene.prompt.hour < last:
        return False
    if "place" in pair and pair["place"] not in scene.place:
        return False
    return "doing" not in pair or re.search(pair["doing"], scene.other_doing) is not None


def _fresh(options: list[str], scene: Scene, random: Random) -> str:
    """An option that has not been said yet, if there is one."""
    unsaid = [option for option in options if option.partition("{")[0] not in scene.said]
    return scene.fill(pick(unsaid or options, random))


def _json(text: str, ends: bool) -> str:
    return json.dumps({"utterance": text, "ends": ends}, ensure_ascii=False)


@cache
def talk_phrases() -> dict[str, Any]:
    """The content of `talk.toml`."""
    text = (files("metropolis.worlds.smallville.author") / "talk.toml").read_text("utf-8")
    return tomllib.loads(text)


def over(news: str, hour: int) -> bool:
    """Whether the time given in the news has passed."""
    found = re.search(r"\bat (half past )?(three|four|five|six)\b", news)
    return found is not None and hour > _AFTERNOON[found[2]]


def match_talk(table: str, text: str) -> list[str] | None:
    """Like `prompt.match`, for a table of `talk.toml`."""
    entries: dict[str, list[str]] = talk_phrases()[table]
    return next((value for words, value in entries.items() if words in text), None)


_AFTERNOON = {"three": 15, "four": 16, "five": 17, "six": 18}
_TOPIC = re.compile(r"thinking about|talk about|go on about|mind is on")
_CLOSINGS = ("See you later.", "Until later, then.", "Let us talk again soon.", "Take care.")
