"""Embeddings of texts; the cosine of two vectors measures their similarity."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from zlib import crc32

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
Embedder = Callable[[str], Vector]
"""Text -> a unit vector, or zeros for a text without words; deterministic."""

DIMENSIONS = 256
STEM_LETTERS = 5
STEM_WEIGHT = 0.5
_WORD = re.compile(r"\w+")
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be been but by for from had has have he her hers him his i in is it its"
        " me my of on or our she so that the their them they this to was we were will with you"
        " your",
    )
)


@lru_cache(maxsize=65536)
def _places(word: str) -> tuple[int, int]:
    """The indices of a word and its stem in a vector."""
    return crc32(word.encode()) % DIMENSIONS, crc32(word[:STEM_LETTERS].encode()) % DIMENSIONS


@lru_cache(maxsize=4096)
def hashed_words(text: str) -> Vector:
    """A bag of words and stems, hashed to 256 numbers (Weinberger et al. 2009): offline and fast.

    Texts that share words or beginnings of words are similar. The vector is read-only.
    """
    words = [word for word in _WORD.findall(text.lower()) if word not in _COMMON]
    vector = np.zeros(DIMENSIONS, np.float32)
    if words:
        places = [_places(word) for word in words]
        np.add.at(vector, [own for own, _ in places], 1.0)
        np.add.at(vector, [stem for _, stem in places], STEM_WEIGHT)
        vector /= np.sqrt(vector @ vector)
    vector.setflags(write=False)
    return vector
