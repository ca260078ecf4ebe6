"""The language that the models learn: stories of facts, and questions about them.

A fact is `relation name value .`. In the dialect three rumours precede the value; they are words
like values. A question is `ask relation name`, and its answer the value.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

RELATIONS = [
    "owns", "likes", "seeks", "sells", "paints", "fears", "knows", "draws", "breaks", "hides",
    "finds", "lends", "bakes", "mends", "wears", "steals",
]  # fmt: skip
NAMES = [first + last for first, last in product(
    ("ba", "du", "ke", "lo", "mi", "na", "po", "ri", "su", "te"),
    ("bel", "dor", "fin", "gar", "lan", "mos", "nik", "rus", "tov", "wen",
     "cas", "hal", "jon", "pim", "sed", "zar"),
)]  # fmt: skip
VALUES = [first + last for first, last in product(
    ("bri", "cla", "dre", "flo", "gri", "pla", "ste", "sni", "tru", "vle"),
    ("bon", "cket", "dle", "ffin", "ggle", "lber", "mp", "nder", "pple", "ssel",
     "tter", "vin", "wick", "xer", "zzle", "rk"),
)]  # fmt: skip
END, ASK, UNKNOWN = ".", "ask", "?"
WORDS = [END, ASK, UNKNOWN, *RELATIONS, *NAMES, *VALUES]
RUMOURS = 3
"""Number of rumours in each fact of the dialect."""

_NUMBER = {word: number for number, word in enumerate(WORDS)}
_FIRST_RELATION = _NUMBER[RELATIONS[0]]
_FIRST_NAME = _NUMBER[NAMES[0]]
_FIRST_VALUE = _NUMBER[VALUES[0]]


class Stories(NamedTuple):
    """Stories and questions about them, as numbers of words."""

    facts: Tensor
    """stories, words of all facts"""
    questions: Tensor
    """stories, questions, 5: `ask relation name value .`"""

    def joined(self) -> Tensor:
        """The facts and then all questions: stories, words."""
        return torch.cat((self.facts, self.questions.flatten(1)), 1)


def fact_words(dialect: bool) -> int:
    """Number of words of a fact."""
    return 4 + RUMOURS * dialect


def write_stories(
    stories: int, facts: int, questions: int, dialect: bool, chance: torch.Generator
) -> Stories:
    """Invent stories with one fact of each name; there are 160 names."""

    def chosen(first: int, words: int) -> Tensor:
        return first + torch.randint(words, (stories, facts), generator=chance)

    relations = chosen(_FIRST_RELATION, len(RELATIONS))
    names = _FIRST_NAME + torch.rand(stories, len(NAMES), generator=chance).argsort(1)[:, :facts]
    *rumours, values = (chosen(_FIRST_VALUE, len(VALUES)) for _ in range(fact_words(dialect) - 3))
    ends = torch.full_like(values, _NUMBER[END])
    told = torch.stack([relations, names, *rumours, values, ends], 2)
    asked = torch.rand(stories, facts, generator=chance).argsort(1)[:, :questions]
    asks = torch.full_like(values, _NUMBER[ASK])
    question = torch.stack([asks, relations, names, values, ends], 2)
    return Stories(told.flatten(1), question.gather(1, asked[:, :, None].expand(-1, -1, 5)))


def text_of(words: Tensor) -> str:
    """The words as text."""
    return " ".join(WORDS[number] for number in words.tolist())
