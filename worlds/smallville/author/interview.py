"""Answers to an interviewer, from the memories in the prompt that fit the question."""

from __future__ import annotations

import re
from random import Random

from metropolis.worlds.smallville.author.prompt import Prompt, phrases, pick

MEMORIES_MOST = 2
"""Maximum number of memories in an answer."""
_VERBS = {"is": "am", "has": "have"}


def answer(prompt: Prompt, random: Random) -> str:
    """The memories that share most words with the question; otherwise the present activity."""
    asked = _words(prompt.fact("Question")) - _words(prompt.name)
    shared = {text: len(asked & _words(text)) for text in prompt.statements}
    most = max(shared.values(), default=0)
    if not most:
        return f"{pick(phrases()['ignorance'], random)} At present: {prompt.fact('At present')}."
    fitting = [text for text, count in shared.items() if count == most][:MEMORIES_MOST]
    told = [_in_first_person(text, prompt.name) for text in fitting]
    return f"{pick(phrases()['recollections'], random)} {' '.join(told)}"


def _words(text: str) -> set[str]:
    """The words of `text` that say what it is about, without a plural's or genitive's s."""
    words = set(re.findall(r"\w\w+", text.lower())) - set(phrases()["question_words"].split())
    return {word.removesuffix("s") for word in words}


def _in_first_person(text: str, name: str) -> str:
    """`text` as a sentence of `name`, where its verb allows it."""
    found = re.match(rf"{re.escape(name)} (is|has|should|heard|told|let|noticed|liked)\b", text)
    if found is not None:
        text = f"I {_VERBS.get(found[1], found[1])}{text[found.end() :]}"
    return text if text[-1] in ".!?" else f"{text}."
