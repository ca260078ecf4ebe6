"""Parsing of prompts, and access to the author's phrases."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from random import Random
from typing import Any, TypeVar

Option = TypeVar("Option")
HERALDS = (
    "Have you heard?",
    "Did you know?",
    "Listen to this.",
    "By the way:",
    "Here is something for you:",
    "Word has it:",
    "I meant to tell you:",
    "You will like this:",
)
CONFIDENCE = "Between you and me:"
TOLD = re.compile(rf"(?:{'|'.join(map(re.escape, (*HERALDS, CONFIDENCE)))}) (.+?[.!])(?: |$)")
"""News in an utterance of the author."""
_TOPIC = re.compile(r"([^;“]+?) \(“([^”]*)”\)(?:; )?")
_OCCUPIED = re.compile(r" (?:is|are|been) (?:also )?(\w+ing [^.,;:]{4,80})(?=[.,;:])")
"""A present occupation: what follows "is" in "is writing a book."."""
DATE_FORMAT = "%A, %d %B %Y, %H:%M"


class Prompt:
    """A prompt's text and the facts in it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def fact(self, heading: str) -> str:
        """The text after the first `heading: ` at the beginning of a line; empty if none."""
        start = self.text.find(f"{heading}: ")
        if start < 0 or (start and self.text[start - 1] != "\n"):
            start = self.text.find(f"\n{heading}: ") + 1
            if not start:
                return ""
        start += len(heading) + 2
        end = self.text.find("\n", start)
        return self.text[start : end if end >= 0 else None]

    def between(self, before: str, after: str) -> str:
        """The text between the last `before` and the `after` that follows it."""
        start = self.text.rfind(before)
        if start < 0:
            return ""
        start += len(before)
        end = self.text.find(after, start)
        return self.text[start : end if end >= 0 else None]

    @cached_property
    def name(self) -> str:
        """The name of the resident."""
        return self.fact("Name").split(" (age")[0]

    @cached_property
    def first_name(self) -> str:
        """The first name of the resident."""
        return (self.name or "Somebody").split()[0]

    @cached_property
    def now(self) -> datetime:
        """The date and time; noon of a day long ago in prompts without a date."""
        return _moment(self.fact("Date"))

    @property
    def hour(self) -> int:
        """The hour of the day."""
        return self.now.hour

    @cached_property
    def topics(self) -> dict[str, str]:
        """Favourite topic of the resident -> their remark about it.

        Residents without favourites talk about what they are occupied with, without a remark.
        """
        if likes := self.fact("Likes to talk about"):
            return dict(_TOPIC.findall(likes))
        told = f"{self.fact('Present goal')} {self.fact('Background')}"
        occupied = dict.fromkeys((found.strip() for found in _OCCUPIED.findall(told)), "")
        if occupation := self.fact("Occupation"):
            article = "an" if occupation[0] in "aeiouAEIOU" else "a"
            occupied[f"the work of {article} {occupation}"] = ""
        return occupied

    @cached_property
    def statements(self) -> list[str]:
        """The numbered memories."""
        return re.findall(r"^\d+\. (.+)$", self.text, re.MULTILINE)


@lru_cache(maxsize=256)
def _moment(text: str) -> datetime:
    try:
        return datetime.strptime(text, DATE_FORMAT)
    except ValueError:
        return datetime(2000, 1, 1, 12)


@cache
def phrases() -> dict[str, Any]:
    """The content of `phrases.toml`."""
    text = (files("metropolis.worlds.smallville.author") / "phrases.toml").read_text("utf-8")
    return tomllib.loads(text)


@cache
def _table(name: str) -> list[tuple[re.Pattern[str], Any]]:
    return [(re.compile(rf"\b(?:{words})"), value) for words, value in phrases()[name].items()]


def matches(table: str, text: str) -> Iterator[Any]:
    """The values of a table of `phrases.toml` whose keys occur in `text`."""
    lowered = text.lower()
    return (value for words, value in _table(table) if words.search(lowered))


def match(table: str, text: str) -> Any:
    """The first of `matches`; None: there is none."""
    return next(matches(table, text), None)


def pick(options: Sequence[Option], random: Random) -> Option:
    """One of `options`, uniformly at random."""
    return options[int(random.random() * len(options))]


def numbered(lines: Sequence[str]) -> str:
    """A list whose number 1 the prompt has already written."""
    return "\n".join([f" {lines[0]}", *(f"{i}) {line}" for i, line in enumerate(lines[1:], 2))])
