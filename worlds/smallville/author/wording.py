"""Texts with alternatives: `[good|fine] morning, {other}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from random import Random

from metropolis.worlds.smallville.author.prompt import pick

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_NAME = re.compile(r"\{\w+\}")


def worded(text: str, random: Random) -> str:
    """`text` with one alternative of each choice."""

    def chosen(found: re.Match[str]) -> str:
        return pick(found[1].split("|"), random)

    return _CHOICE.sub(chosen, text)


def filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with the value of each of its placeholders, such as `{me}`."""
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text


def occurs(text: str, within: str) -> bool:
    """Whether `pattern(text)` finds something; mostly a part of it alone says no, and faster."""
    return _literal(text) in within and pattern(text).search(within) is not None


@lru_cache(maxsize=4096)
def _literal(text: str) -> str:
    """The longest part of `text` without alternatives and names."""
    return max(_NAME.sub("\0", _CHOICE.sub("\0", text)).split("\0"), key=len)


@lru_cache(maxsize=4096)
def pattern(text: str) -> re.Pattern[str]:
    """Finds `text` with any alternatives, and any words in place of `{name}`."""
    parts = _CHOICE.split(text)  # every other one is the inside of a choice
    parts[::2] = map(_any_words, parts[::2])
    parts[1::2] = (f"(?:{'|'.join(map(_any_words, part.split('|')))})" for part in parts[1::2])
    return re.compile("".join(parts))


def _any_words(text: str) -> str:
    """A pattern of `text` with any words in place of `{name}`."""
    return ".+?".join(map(re.escape, _NAME.split(text)))
