"""The next line of a conversation: an answer to the last line, and a new opening.

`talk.toml` holds pairs of an opening and the answers to it; a speaker answers the opening that it
recognises in the last line, and adds an unused opening.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any
from zlib import crc32

from metropolis.worlds.smallville.author import quarrels
from metropolis.worlds.smallville.author.dates import ends, over
from metropolis.worlds.smallville.author.facts import News, news_in, secrets_in, told, wording_of
from metropolis.worlds.smallville.author.prompt import CONFIDENCE, HERALDS, TOLD, Prompt, pick
from metropolis.worlds.smallville.author.weather import weather
from metropolis.worlds.smallville.author.wording import occurs, worded
from metropolis.worlds.smallville.news import tells

LINES, SHORT_SHARE, SHORT_LINES = 14, 0.2, range(5, 12)
"""Number of lines before two that close a conversation. In three recorded runs of Generative
Agents 80 % of 482 conversations have all 16 utterances, the others 10 on average."""
QUARREL_LINES = 3
"""Number of lines after which a quarrel may begin."""
ASIDE_SHARE = 0.3
"""Probability of an aside after an answer."""
STORY_SHARE, TOPIC_SHARE = 0.45, 0.5
"""Probability of an opening from what one does and saw; otherwise of a favourite topic."""
REMARK_SHARE = 0.5
"""Probability of the known remark on a topic."""
LEAK_SHARE = 0.05
"""Probability per line of telling a secret."""
OWN_SHARE, HEARD_SHARE = 0.28, 0.01
"""Probability per day and listener of telling own news, and news heard from others."""
OWN_INVITATION_SHARE, HEARD_INVITATION_SHARE = 0.75, 0.015
"""The same probabilities for an invitation, which also concerns the hearer."""
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
        self.today = prompt.now.date()
        pair = f"{' '.join(sorted((self.me, self.other)))} {self.today}"
        draw = crc32(pair.encode())
        is_short = draw % 1000 < 1000 * SHORT_SHARE
        self.length = SHORT_LINES[draw // 1000 % len(SHORT_LINES)] if is_short else LINES
        mind = [*prompt.statements, prompt.fact("Relation")]
        self.quarrels = quarrels.open_quarrels(mind, self.me, self.today)

    @property
    def untold(self) -> list[str]:
        """News that the speaker tells the other today, without those that the other knows."""
        news = news_in(self.prompt.statements)
        news |= {text: News(text, own=True) for text in quarrels.gossip(self.quarrels)}
        return [one.text for key, one in self._new(news) if self._tells(key, one.own)]

    @property
    def leaks(self) -> list[str]:
        """Secrets to tell the other, a close acquaintance who is not known to have them."""
        if self.other not in self.prompt.fact("Knows"):
            return []
        return [one.text for _, one in self._new(secrets_in(self.prompt.statements))]

    def fill(self, text: str, random: Random) -> str:
        """`text` with choices made, and placeholders replaced by the values of this scene."""
        doing = self.my_doing.split(" at the ")[0].split(" on Mill Green")[0]
        return (
            worded(text, random)
            .replace("{other}", self.other.split()[0])
            .replace("{place}", self.place.split(": ")[0])
            .replace("{doing}", doing or "what I was doing")
        )

    def has(self, text: str) -> bool:
        """Whether a text with these words has been said."""
        return occurs(text, self.said)

    def _new(self, facts: Mapping[str, News]) -> Iterator[tuple[str, News]]:
        """The facts that are not over, not about the other, and that the other may not know."""
        for key, one in facts.items():
            if (
                self.other not in one.known_to
                and self.other not in one.text
                and not tells(self.said, key)
                and one.text not in self.said
                and not over(one.text, self.prompt.now)
            ):
                yield key, one

    def _tells(self, key: str, own: bool) -> bool:
        """Whether the speaker is in the mood to tell these news to the other today."""
        wording = wording_of(key)
        if wording is not None and wording.what:
            share = OWN_INVITATION_SHARE if own else HEARD_INVITATION_SHARE
        else:
            share = OWN_SHARE if own else HEARD_SHARE
        draw = crc32(f"{self.me} {self.other} {self.today} {key}".encode())
        return draw % 1000 < 1000 * share


def say(scene: Scene, random: Random) -> str:
    """The next line, in JSON."""
    words = talk_phrases()
    count = len(scene.lines)
    last = scene.lines[-1][1] if count else ""
    if any(occurs(text, last) for text in (*words["closings"], *words["parting"])):
        return _json(scene.fill(pick(words["farewells"], random), random), True)
    if quarrels.CROSS.search(last):
        return _json(scene.fill(pick(words["offence"], random), random), False)
    if quarrels.CROSS.search(scene.said):
        return _json(scene.fill(pick(words["parting"], random), random), False)
    answer = _answer(scene, random) if count else _greeting(scene, random)
    opening = "" if count >= scene.length else _opening(scene, random)
    if not opening:
        opening = scene.fill(pick(words["closings"], random), random)
    return _json(f"{answer} {opening}".strip(), False)


def _greeting(scene: Scene, random: Random) -> str:
    hour = scene.prompt.hour
    part = "morning" if hour < 12 else "afternoon" if hour < 18 else "evening"
    return scene.fill(pick(talk_phrases()["greetings"][part], random), random)


def _answer(scene: Scene, random: Random) -> str:
    """An answer to the last line."""
    words, last = talk_phrases(), scene.lines[-1][1]
    if len(scene.lines) == 1:
        hello = scene.fill(pick(words["greetings"]["back"], random), random) + " "
    else:
        hello = ""
    if quarrels.SORRY.search(last):
        return hello + _fresh(words["forgiving"], scene, random)
    if (news := TOLD.search(last)) is not None:
        wording = wording_of(news[1])
        reactions = wording.reactions if wording else []
        return hello + _fresh(reactions or words["surprise"], scene, random)
    for pair in words["pairs"]:
        if occurs(pair["say"], last):
            return hello + _fresh(pair["replies"], scene, random)
    if (who := _SEEN.search(last)) is not None:
        answer = _fresh(words["about_people"], scene, random).replace("{who}", who[1])
    else:
        kinds = (("works", "about_work"), ("plans", "about_plans"))
        kind = next((to for by, to in kinds if _recognised(by, last)), None)
        about = "interest" if _TOPIC.search(last) else "agreement"
        answer = _fresh(words[kind or about], scene, random)
    if random.random() < ASIDE_SHARE:
        answer += " " + _fresh(words["asides"], scene, random)
    return hello + answer


def _opening(scene: Scene, random: Random) -> str:
    """A new opening: quarrels and news first, then work, people, topics and small talk."""
    words = talk_phrases()
    if own := _quarrel(scene, random):
        return own
    spent = sum(len(TOLD.findall(text)) for who, text in scene.lines if who == scene.me)
    untold = scene.untold if spent < NEWS_MOST else []
    if untold and (scene.lines or random.random() < 0.5):
        news = told(pick(untold, random), scene.prompt, random)
        return f"{pick(list(HERALDS), random)} {news}"
    if len(scene.lines) > 2 and random.random() < LEAK_SHARE and (leaks := scene.leaks):
        return f"{CONFIDENCE} {told(pick(leaks, random), scene.prompt, random)}"
    if random.random() < STORY_SHARE and (story := _story(scene, random)):
        return story
    openings = [pair["say"] for pair in words["pairs"] if _suits(pair, scene)]
    if scene.prompt.topics and (not openings or random.random() < TOPIC_SHARE):
        return _topic(scene, random)
    return scene.fill(pick(openings, random), random) if openings else ""


def _quarrel(scene: Scene, random: Random) -> str:
    """An apology for a quarrel of another day, or a new quarrel; mostly nothing."""
    words = talk_phrases()
    for quarrel in scene.quarrels:
        if quarrel.other == scene.other:
            if quarrel.day == scene.today or quarrels.SORRY.search(scene.said):
                return ""
            text = pick(words["peace"], random).replace("{matter}", quarrel.matter)
            return scene.fill(text, random)
    about = quarrels.matter(scene.me, scene.other, scene.today)
    if not about or len(scene.lines) < QUARREL_LINES or quarrels.SORRY.search(scene.said):
        return ""
    return scene.fill(pick(words["quarrels"], random).replace("{matter}", about), random)


def _story(scene: Scene, random: Random) -> str:
    """What the speaker does, plans to do, or saw others do; empty: nothing new."""
    words = talk_phrases()
    options = []
    if scene.my_doing and not _PRIVATE.search(scene.my_doing):
        options.append(pick(words["works"], random))
    plan = [
        item
        for item in scene.prompt.fact("Plan for the day").split("; ")
        if ":" not in item and scene.prompt.hour < ends(item)
    ]
    if plan and not scene.has(template := pick(words["plans"], random)):
        options.append(template.replace("{plan}", _base_form(pick(plan, random))))
    for statement in scene.prompt.statements:
        seen = _DOES.match(statement)
        if seen and seen[1] not in (scene.me, scene.other) and not _PRIVATE.search(seen[2]):
            text = pick(words["seen"], random).replace("{what}", seen[2].rstrip("."))
            options.append(text.replace("{who}", seen[1].split()[0]))
    kinds = [text for text in options if not scene.has(text)]
    return scene.fill(pick(kinds, random), random) if kinds else ""


def _topic(scene: Scene, random: Random) -> str:
    """A favourite topic, with the remark that the speaker makes about it or in other words."""
    words = talk_phrases()
    topics = {
        re.sub(r"\b(?:his|her)\b", "my", topic): remark
        for topic, remark in scene.prompt.topics.items()
    }
    fresh = {topic: remark for topic, remark in topics.items() if topic not in scene.said}
    topic = pick(list(fresh or topics), random)
    remark = topics[topic]
    if remark in scene.said or random.random() >= REMARK_SHARE:
        remark = pick(words["more_of_topics"], random)
    intros = [text for text in words["topics"] if text.replace("{topic}", topic) not in scene.said]
    text = f"{pick(intros or words['topics'], random)} {remark}"
    text = text.replace("{topic_start}", topic[0].upper() + topic[1:])
    return scene.fill(text.replace("{topic}", topic), random)


def _suits(pair: dict[str, Any], scene: Scene) -> bool:
    """Whether an opening suits the place, time and weather, and has not been used."""
    if scene.has(pair["say"]):
        return False
    first, last = pair.get("hours", (0, 24))
    if not first <= scene.prompt.hour < last:
        return False
    if "place" in pair and pair["place"] not in scene.place:
        return False
    if "weather" in pair and pair["weather"] != weather(scene.today):
        return False
    return "doing" not in pair or re.search(pair["doing"], scene.other_doing) is not None


def _fresh(options: list[str], scene: Scene, random: Random) -> str:
    """An option that has not been said yet, if there is one."""
    unsaid = [option for option in options if not scene.has(option)]
    return scene.fill(pick(unsaid or options, random), random)


def _base_form(plan: str) -> str:
    """`bakes until noon` as `bake until noon`."""
    verb, _, rest = re.sub(r"\b(?:his|her)\b", "my", plan).partition(" ")
    verb = {"has": "have", "goes": "go", "is": "be", "does": "do"}.get(verb, verb)
    verb = re.sub(r"ies$", "y", re.sub(r"(?<=ch|sh|ss)es$", "", verb))
    return f"{re.sub(r'(?<=[^s])s$', '', verb)} {rest}"


def _recognised(table: str, text: str) -> bool:
    return any(occurs(own, text) for own in talk_phrases()[table])


def _json(text: str, ends: bool) -> str:
    return json.dumps({"utterance": text, "ends": ends}, ensure_ascii=False)


@cache
def talk_phrases() -> dict[str, Any]:
    """The content of `talk.toml`."""
    text = (files("metropolis.worlds.smallville.author") / "talk.toml").read_text("utf-8")
    return tomllib.loads(text)


_TOPIC = re.compile(r"thinking about|talk about|go on about|mind is on")
_SEEN = re.compile(r"(?:I saw|Have you seen|I noticed|There was) ([A-Z][\w]+),? ")
_DOES = re.compile(r"([A-Z]\w+ (?:de )?[A-Z]\w+) is (\w+ing .+)")
_PRIVATE = re.compile(
    r"sleep|convers|going|about$|waiting|teeth|shower|wash|dress|clothes|toilet|\bbed"
)
"""Activities of which one does not speak."""
