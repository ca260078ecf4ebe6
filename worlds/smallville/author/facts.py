"""The author's words for the news of Alderbrook: tellings, reactions, invitations."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files
from random import Random

import msgspec

from metropolis.worlds.smallville.author.dates import day_in, over, spoken
from metropolis.worlds.smallville.author.prompt import Prompt, pick
from metropolis.worlds.smallville.author.wording import worded
from metropolis.worlds.smallville.news import tells

_NEWS = re.compile(
    r"(?:^News|heard news from (?P<source>[^:]*)|told (?P<hearer>[^:]*) the news): (?P<text>.+)"
)
_SECRETS = re.compile(
    r"(?:^Secret|heard in confidence from (?P<source>[^:]*)|let slip to (?P<hearer>[^:]*)): "
    r"(?P<text>.+)"
)
_DAY = "{day}"
_NAME = re.compile(r"\b[A-Z][a-zé]+ (?:de )?[A-Z][a-zé]+\b")
_NO_NAME = re.compile(r"Caf|Inn\b|Green|College|Market|House|Lodge|Street|Workshop|day\b")


@dataclass(frozen=True)
class Wording:
    """How the author speaks of a fact with this mark."""

    mark: str
    label: str
    """What a conversation about it was about."""
    tellings: list[str]
    """One sentence each, with all words of the mark; `{day}` and `{who}` come from what the
    resident remembers."""
    reactions: list[str] = field(default_factory=list)
    hours: tuple[int, int] = (0, 0)
    """The first hour of an invitation, and the one after its last."""
    what: str = ""
    """The activity of those who come."""


@lru_cache(maxsize=4096)
def wording_of(text: str) -> Wording | None:
    """The wording of the fact that `text` tells."""
    return next((own for own in _wordings() if tells(text, own.mark)), None)


@dataclass
class News:
    """A fact that a resident remembers."""

    text: str
    own: bool
    """Whether it was not heard from another resident."""
    known_to: set[str] = field(default_factory=set)
    """The names of those who told it to the resident, or heard it from them."""


def news_in(statements: Iterable[str]) -> dict[str, News]:
    """The news in memories, by mark; by text where the author has no words for it."""
    return _facts_in(statements, _NEWS)


def secrets_in(statements: Iterable[str]) -> dict[str, News]:
    """The secrets in memories, like `news_in`."""
    return _facts_in(statements, _SECRETS)


def _facts_in(statements: Iterable[str], pattern: re.Pattern[str]) -> dict[str, News]:
    found: dict[str, News] = {}
    for statement in statements:
        memory = pattern.search(statement)
        if memory is None:
            continue
        text, source, hearer = memory["text"].strip(), memory["source"], memory["hearer"]
        wording = wording_of(text)
        news = found.setdefault(wording.mark if wording else text, News(text, own=False))
        news.own |= source is None and hearer is None
        news.known_to |= {name for name in (source, hearer) if name}
    return found


def told(news: str, prompt: Prompt, random: Random) -> str:
    """A telling of `news`, with its day and person; `news` itself if the author has no words."""
    own = wording_of(news)
    if own is None:
        return news
    day, who = day_in(news, prompt.now.date()), name_in(news)
    usable = [
        text
        for text in own.tellings
        if (day is not None or _DAY not in text) and (who or "{who}" not in text)
    ]
    if not usable:
        return news
    text = worded(pick(usable, random), random).replace("{who}", who)
    return text.replace(_DAY, spoken(day)) if day else text


def invitation(prompt: Prompt, hour: int) -> str:
    """The activity to which something in the prompt invites at this hour today; empty: none."""
    if not any(own.hours[0] <= hour < own.hours[1] for own in _wordings()):
        return ""
    for line in prompt.text.splitlines():
        own = wording_of(line)
        if own is None or not own.hours[0] <= hour < own.hours[1]:
            continue
        now = prompt.now.replace(hour=own.hours[0])
        if day_in(line, now.date()) == now.date() and not over(line, now):
            return own.what
    return ""


def name_in(text: str) -> str:
    """The first name of a person in `text`; empty: none."""
    return next((name for name in _NAME.findall(text) if not _NO_NAME.search(name)), "")


@cache
def _wordings() -> tuple[Wording, ...]:
    text = (files("metropolis.worlds.smallville.author") / "facts.toml").read_text("utf-8")
    content: Mapping[str, object] = tomllib.loads(text)
    return tuple(msgspec.convert(content["fact"], list[Wording]))
