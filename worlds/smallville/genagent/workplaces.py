"""Workplaces of imported people, found in the sentences that describe them.

A phrase names a place if its words are words of the place's name in the same order: "the Willow
Market" is The Willows Market and Pharmacy. Case, accents, articles and possessives do not count.
Without one best place there is none.

This is for English. In Chinese, Japanese and Korean, which do not separate words from particles, it
is the one sector whose name occurs in the first sentence of the first description.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

_FILLERS = frozenset(["the", "a", "an", "and", "of", "for"])
_ARTICLES = frozenset(["the", "a", "an", "his", "her", "their", "my", "its", "our", "local"])
_LEAD = re.compile(
    "at|in|of|to|from|behind|inside|opens?|opening|closes?|closing|manages?|managing|runs?|running|"
    "owns?|owning|keeps?|keeping|tends?|tending"
)
_FOLLOWER = re.compile(
    "at|in|on|of|to|from|and|or|by|with|for|as|the|a|early|late|every|everyday|daily|each|all|most|"
    r"around|until|till|between|during|before|after|starting|where|while|then|\d.*"
)
_SENTENCE = re.compile(r"(?<=\w\w\w[.;!?])\s+|\n|(?:^|(?<=\s))\d+[.)]\s+")
_CLAUSE = re.compile(r",\s|\s(?=who\b|which\b|that\b|but\b|then\b)")
_WORK = re.compile(
    r"\bis (?:also |currently )?(?:an?|the) |\b(?:work|works|working|has worked|teach\w*|"
    r"in (?:the )?[\w-]+ grade|"
    r"stud(?:y|ies|ying)|class(?:es)?|lectures?|open(?:s|ing)?|clos(?:es|ing)|manag(?:es|ing|e)|"
    r"(?:runs|running) (?!at|in|around|through|along|to\b)|own(?:s|er)?|serv(?:es|ing)|"
    r"keep(?:s|ing)|shifts?|employ\w*|staff\w*|counter|tend(?:s|ing))\b",
    re.IGNORECASE,
)
_NOT_WORK = re.compile(
    r"\b(?:eats?|eating|relax\w*|part(?:y|ies)|celebrat\w*|walks?|jogs?|visit\w*|meet\w*|"
    r"(?:have|has|having|gets?|for|grabs?) (?:\w+ )?(?:lunch|dinner|breakfast|drinks?|coffee)|"
    r"(?:regular|guest|customer|patron|fan|former)\b|formerly|used to|no longer|not|never|wants?|"
    r"hop(?:es|ing)|dream\w*|plan(?:s|ning)|would like|likes to (?:go|sit))\b",
    re.IGNORECASE,
)
EAST_ASIAN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""The letters of Chinese, Japanese and Korean, as ranges of a regular expression."""
_EAST_ASIAN = re.compile(f"[{EAST_ASIAN}]")
_RETIRED = re.compile(r"\b(?:retired|retiree|pensioner|unemployed|jobless)\b", re.IGNORECASE)
_RELATIVE = re.compile(
    r"\b(?:husband|wife|spouse|son|daughter|mother|father|parents?|brother|sister|friend|partner|"
    r"girlfriend|boyfriend|fianc[eé]e?|uncle|aunt|cousin|neighbou?r|housemate|roommate)s?\b",
    re.IGNORECASE,
)


class Workplace(NamedTuple):
    """A place of work, and the field that names it; empty texts: none."""

    sector: str = ""
    arena: str = ""
    """The arena, if the sentence names one."""
    field: str = ""


class _Name(NamedTuple):
    sector: str
    arena: str
    words: tuple[str, ...]
    is_dwelling: bool


class Places:
    """The named places of a map, some of which are homes."""

    def __init__(self, arena_names: Collection[str], homes: Collection[str]) -> None:
        """`arena_names` are `sector: arena`; `homes` the sectors in which somebody lives."""
        names: set[_Name] = set()
        for name in filter(None, arena_names):
            sector, _, arena = name.partition(": ")
            names.add(_Name(sector, "", _content(sector), sector in homes))
            names.add(_Name(sector, arena, _content(arena), sector in homes))
        self._names = sorted(names)

    def workplace(
        self, name: str, texts: Mapping[str, str], home: str, others: Collection[str]
    ) -> Workplace:
        """The place of the first sentence about their own work.

        `texts` are the descriptions by field, best field first. `others` are the names of other
        people; what follows one in a sentence may be about that person.
        """
        own = set(name.split())
        theirs = {word for other in others for word in (other, other.split()[0])} - own - {name}
        someone = (
            re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(theirs)))})\b") if theirs else None
        )
        if sector := self._named_in_east_asian(next(iter(texts.values()), ""), home):
            return Workplace(sector, "", next(iter(texts)))
        for field, text in texts.items():
            for sentence in _SENTENCE.split(text):
                if _RETIRED.search(sentence) and field == next(iter(texts)):
                    return Workplace()
                for clause in _own_clauses(sentence, someone):
                    found = self._named(_without(clause, own), home)
                    if found:
                        return found._replace(field=field)
        return Workplace()

    def _named_in_east_asian(self, text: str, home: str) -> str:
        """The one sector in the first sentence of a text; empty if there is none, or several."""
        first = re.split("[。！？.!?\n]", text, maxsplit=1)[0]
        names = {
            name.sector
            for name in self._names
            if not name.is_dwelling and _EAST_ASIAN.search(name.sector) and name.sector in first
        }
        return names.pop() if len(names) == 1 and home not in names else ""

    def _named(self, clause: str, home: str) -> Workplace | None:
        """The one place that a clause names; None if there is none, or several."""
        words = _words(clause)
        sectors, arenas = set(), set()
        start = 0
        while start < len(words):
            size, best = self._longest(words, start, home)
            for found in best:
                sectors.add(found.sector)
                arenas.add((found.sector, found.arena))
            start += size or 1
        if len(sectors) != 1 or home in sectors:
            return None
        sector = sectors.pop()
        named = {arena for _, arena in arenas if arena}
        return Workplace(sector, named.pop() if len(named) == 1 else "")

    def _longest(self, words: Sequence[str], start: int, home: str) -> tuple[int, list[_Name]]:
        """The number of words of the longest phrase at `start`, and the places that fit best."""
        if words[start] in _FILLERS:
            return 0, []
        for end in range(min(len(words), start + 12), start, -1):
            phrase = tuple(word for word in words[start:end] if word not in _FILLERS)
            if words[end - 1] in _FILLERS or (len(phrase) == 1 and not _alone(words, start, end)):
                continue
            whole = [name for name in self._names if not name.arena and phrase == name.words]
            # Of other people's homes only the whole name counts.
            parts = (name for name in self._names if not name.is_dwelling or name.sector == home)
            fits = whole or [name for name in parts if _in_order(phrase, name.words)]
            # The college is not the dorm of the college.
            if fits := [of for of in fits if of.arena or of.sector != home] or fits:
                return end - start, fits
        return 0, []


def _own_clauses(sentence: str, someone: re.Pattern[str] | None) -> list[str]:
    """The clauses of a sentence that are about the person's own work."""
    marks = [pattern.search(sentence) for pattern in (_RELATIVE, someone) if pattern]
    end = min((mark.start() for mark in marks if mark), default=len(sentence))
    clauses = _CLAUSE.split(sentence[:end])
    return [text for text in clauses if _WORK.search(text) and not _NOT_WORK.search(text)]


def _without(clause: str, name: Collection[str]) -> str:
    """The clause without the person's name at its start, which may be part of a place's name."""
    words = clause.split()
    while words and words[0] in name:
        del words[0]
    return " ".join(words)


def _alone(words: Sequence[str], start: int, end: int) -> bool:
    """Whether a single word names a place: "at the library", not "a college student"."""
    before = start - 1
    while before >= 0 and words[before] in _ARTICLES:
        before -= 1
    follower = words[end] if end < len(words) else ""
    follows = not follower or _FOLLOWER.fullmatch(follower) is not None
    return follows and before >= 0 and _LEAD.fullmatch(words[before]) is not None


def _in_order(phrase: Sequence[str], name: Sequence[str]) -> bool:
    rest = iter(name)
    return bool(phrase) and all(word in rest for word in phrase)


def _content(name: str) -> tuple[str, ...]:
    return tuple(word for word in _words(name) if word not in _FILLERS)


def _words(text: str) -> list[str]:
    """The words in lower case, without accents; without a possessive or plural s if not short."""
    plain = unicodedata.normalize("NFKD", text.replace("’", "'")).casefold()
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    words = re.findall(r"\w+(?:'\w+)?", plain)
    return [_singular(word) for word in words]


def _singular(word: str) -> str:
    if _LEAD.fullmatch(word) or _FOLLOWER.fullmatch(word):
        return word
    word = word.removesuffix("'s")
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
