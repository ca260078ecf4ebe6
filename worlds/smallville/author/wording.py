"""Texts with alternatives: `[good|fine] morning, {other}`."""

from __future__ import annotations

import re
from functools import cache
from random import Random

from metropolis.worlds.smallville.author.prompt import pick

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_PART = re.compile(r"\[([^\[\]]*)\]|\{\w+\}")


def worded(text: str, random: Random) -> str:
    """`text` with one alternative of each choice."""

    def chosen(found: re.Match[str]) -> str:
        return pick(found[1].split("|"), random)

    return _CHOICE.sub(chosen, text)


def occurs(text: str, within: str) -> bool:
    """Whether `pattern(text)` finds something; mostly a part of it alone says no, and faster."""
    return _literal(text) in within and pattern(text).search(within) is not None


@cache
def _literal(text: str) -> str:
    """The longest part of `text` without alternatives and names."""
    return max(_PART.sub("\0", text).split("\0"), key=len)


@cache
def pattern(text: str) -> re.Pattern[str]:
    """Finds `text` with any alternatives, and any words in place of `{name}`."""
    found, end = "", 0
    for part in _PART.finditer(text):
        found += re.escape(text[end : part.start()])
        options = part[1].split("|") if part[1] is not None else []
        found += f"(?:{'|'.join(map(re.escape, options))})" if options else ".+?"
        end = part.end()
    return re.compile(found + re.escape(text[end:]))
