"""Measures of answers' quality, from 0 to 1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable

Metric = Callable[[str, str], float]
"""(answer, right answer) -> the quality of the answer, from 0 to 1."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def words(text: str) -> list[str]:
    """The words that count: lower case, without punctuation and articles (as in SQuAD)."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def exact_match(found: str, right: str) -> float:
    """1 if both have the same words in the same order, else 0."""
    return float(words(found) == words(right))


def f1(found: str, right: str) -> float:
    """The harmonic mean of precision and recall of words (as in SQuAD)."""
    ours, theirs = words(found), words(right)
    if not ours or not theirs:
        return float(ours == theirs)
    common = (Counter(ours) & Counter(theirs)).total()
    return 2 * common / (len(ours) + len(theirs))


METRICS: dict[str, Metric] = {"exact_match": exact_match, "f1": f1}
