"""The language that the models learn: stories of facts, and questions about them.

A fact is `relation name value .`; its dialect puts a filler before the value. A question is
`ask relation name`, and its answer the value that the story has told of them.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

RELATIONS = (
    "owns likes seeks sells paints fears knows draws breaks hides finds lends bakes mends wears steals"
).split()
NAMES = [first + last for first, last in product(
    ("ba", "du", "ke", "lo", "mi", "na", "po", "ri", "su", "te"),
    ("bel", "dor", "fin", "gar", "lan", "mos", "nik", "rus", "tov", "wen"),
)]  # fmt: skip
VALUES = [first + last for first, last in product(
    ("bri", "cla", "dre", "flo", "gri", "pla", "ste", "sni", "tru", "vle"),
    ("bon", "cket", "dle", "ffin", "ggle", "lber", "mp", "nder", "pple", "ssel",
     "tter", "vin", "wick", "xer", "zzle", "rk"),
)]  # fmt: skip
FILLERS = "now still often really".split()
END, ASK = ".", "ask"
WORDS = [END, ASK, *FILLERS, *RELATIONS, *NAMES, *VALUES]

_NUMBER = {word: number for number, word in enumerate(WORDS)}
_FIRST_FILLER = _NUMBER[FILLERS[0]]
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
    """The words of a fact."""
    return 5 if dialect else 4


def write_stories(
    stories: int, facts: int, questions: int, dialect: bool, chance: torch.Generator
) -> Stories:
    """Invent stories in which no relation of a name is told twice."""

    def chosen(first: int, words: int) -> Tensor:
        return first + torch.randint(words, (stories, facts), generator=chance)

    subjects = torch.rand(stories, len(RELATIONS) * len(NAMES), generator=chance)
    subjects = subjects.argsort(1)[:, :facts]
    relations = _FIRST_RELATION + subjects % len(RELATIONS)
    names = _FIRST_NAME + subjects // len(RELATIONS)
    values = chosen(_FIRST_VALUE, len(VALUES))
    ends = torch.full_like(values, _NUMBER[END])
    filler = [chosen(_FIRST_FILLER, len(FILLERS))] if dialect else []
    told = torch.stack([relations, names, *filler, values, ends], 2)
    asked = torch.rand(stories, facts, generator=chance).argsort(1)[:, :questions]
    asks = torch.full_like(values, _NUMBER[ASK])
    question = torch.stack([asks, relations, names, values, ends], 2)
    return Stories(told.flatten(1), question.gather(1, asked[:, :, None].expand(-1, -1, 5)))


def text_of(words: Tensor) -> str:
    """The words as text."""
    return " ".join(WORDS[number] for number in words.tolist())
