"""Conversations: decisions to talk, utterances, and memories of conversations."""

from __future__ import annotations

import re
from random import Random

from metropolis.worlds.smallville.author import quarrels
from metropolis.worlds.smallville.author.facts import news_in, wording_of
from metropolis.worlds.smallville.author.lines import Scene, say
from metropolis.worlds.smallville.author.prompt import (
    CONFIDENCE,
    TOLD,
    Prompt,
    numbered,
    phrases,
    pick,
)
from metropolis.worlds.smallville.author.wording import filled

_LINE = re.compile(r"^([A-Z][\w.'-]+(?: [\w.'-]+)+): (.+)$", re.MULTILINE)
_TOPIC = re.compile(
    r"(?:(?:thinking|go on|talk) about|mind is on) (.+?)(?: today, I cannot help it| for hours)?\."
)
"""The topic in a line that opens with one."""
ANGRY_SHARE, SORRY_SHARE = 0.02, 0.6
"""Probability of talking with somebody on the day of a quarrel, and later."""
KNOWN_SHARE, STRANGER_SHARE, AGAIN_SHARE = 0.4, 0.2, 0.08
"""Probability of talking with an acquaintance, a stranger, or a partner of a talk today."""
WAIT_SHARE = 0.01
"""Probability of waiting for another. In five recorded runs of Generative Agents (80 person-days)
there were up to 1,061 occasions to wait, and no resident waited."""


def decide_to_talk(prompt: Prompt, random: Random) -> str:
    """Yes is likelier for acquaintances, and less likely after a talk on the same day."""
    if "taking a shower" in prompt.between(f"{prompt.name} is ", "The two "):
        return "no"
    other = prompt.between(", and sees ", ",").strip()
    share = KNOWN_SHARE if other in prompt.text.split("It is ")[0] else STRANGER_SHARE
    today = prompt.now.date()
    for quarrel in quarrels.open_quarrels(prompt.statements, prompt.name, today):
        if quarrel.other == other:
            share = ANGRY_SHARE if quarrel.day == today else SORRY_SHARE
    if "last talked today" in prompt.text:
        share = AGAIN_SHARE
    return "yes" if random.random() < share else "no"


def decide_to_react(prompt: Prompt, random: Random) -> str:  # noqa: ARG001
    """Wait with probability WAIT_SHARE, otherwise go on."""
    return "wait" if random.random() < WAIT_SHARE else "go on"


def relationship(prompt: Prompt, random: Random) -> str:
    """A memory of the other, and a sentence about the feelings."""
    other = prompt.between("that may bear on ", ":")
    me, them = prompt.first_name, other.split()[0]
    sentences = re.split(r"(?<=[.!?]) ", prompt.fact("Knows"))
    shared = [text for text in prompt.statements if them in text and prompt.name in text]
    about = [text for text in (*sentences, *shared) if other in text and " is " not in text[:40]]
    words = phrases()["relations"]
    known = about[0] if about else pick(words["strangers"], random)
    lately = next((text for text in about[1:] if "talk" in text or "news" in text), "")
    parts = [known, pick(words["feelings" if about else "distance"], random)]
    parts.append(f"Lately: {lately}" if lately else pick(words["lately"], random))
    parts.append(pick(words["hopes"], random))
    text = " ".join(part if part[-1] in ".!?" else f"{part}." for part in parts)
    return filled(text, {"{me}": me, "{other}": them})


def utterance(prompt: Prompt, random: Random) -> str:
    """The next line, in JSON."""
    return say(Scene(prompt), random)


def summary(prompt: Prompt, random: Random) -> str:  # noqa: ARG001
    """The news in the conversation, or its topic."""
    lines = " ".join(text for _, text in transcript(prompt))
    if found := quarrels.CROSS.search(lines):
        return f"a quarrel over {found[1]}"
    for told in TOLD.findall(lines):
        wording = wording_of(told)
        return wording.label if wording else "the latest news"
    topic = _TOPIC.search(lines)
    return topic[1].replace("my ", "") if topic else "how the day is going"


def planning_thought(prompt: Prompt, random: Random) -> str:
    """A conclusion from the conversation for the plan."""
    other, name, spoken = _other(prompt), prompt.name, transcript(prompt)
    if any(quarrels.CROSS.search(text) for _, text in spoken):
        return f"{name} should keep out of {other}'s way for a day."
    for speaker, text in spoken:
        for told in TOLD.findall(text):
            told = quarrels.reported(told, speaker)
            return (
                f"{name} should keep in mind what {other} and {prompt.first_name} spoke of: {told}"
            )
    return pick(
        [
            f"{name} should look in on {other} again before the week is out.",
            f"{name} should take a little more time for people like {other}.",
            f"{name} has no need to change any plans after talking with {other}.",
        ],
        random,
    )


def memo(prompt: Prompt, random: Random) -> str:
    """News heard from the other, or told to the other, or a topic of the other."""
    other, name = _other(prompt), prompt.name
    spoken, today = transcript(prompt), prompt.now.date()
    for _, text in spoken:
        if found := quarrels.CROSS.search(text):
            return quarrels.memory_of(name, other, found[1], today)
        if found := quarrels.SORRY.search(text):
            return quarrels.memory_of_peace(name, other, found[1], today)
    for speaker, text in sorted(spoken, key=lambda line: line[0] != other):
        for said in TOLD.findall(text):
            told = quarrels.reported(said, speaker)
            if f"{CONFIDENCE} {said}" in text:
                verb = "heard in confidence from" if speaker == other else "let slip to"
                return f"{name} {verb} {other}: {told}"
            if speaker == other:
                return f"{name} heard news from {other}: {told}"
            return f"{name} told {other} the news: {told}"
    topics = [
        found for speaker, text in spoken if speaker == other for found in _TOPIC.findall(text)
    ]
    about = re.sub(r"\bmy\b", "their own", topics[0]) if topics else "how the day goes"
    return pick(
        [
            f"{name} noticed that {other} cares a great deal about {about}.",
            f"{name} liked to hear {other} talk about {about}.",
        ],
        random,
    )


def questions(prompt: Prompt, random: Random) -> str:  # noqa: ARG001
    """Questions about the people who occur most often in the memories."""
    names = _names(prompt) or [prompt.name]
    first, last = names[0], names[-1]
    asked = [
        f"What matters most to {prompt.name} at present?",
        f"How do {prompt.name} and {first} stand with each other?",
        f"What does {last} need, and who could help?",
    ]
    if news := [wording_of(key) for key in news_in(prompt.statements)]:
        label = next((wording.label for wording in news[::-1] if wording), "the news of the day")
        asked[2] = f"What does {label} mean to the people around {prompt.name}?"
    return "\n".join([f" {asked[0]}", f"2) {asked[1]}", f"3) {asked[2]}"])


def insights(prompt: Prompt, random: Random) -> str:
    """Five insights, each with random statements as evidence."""
    statements = prompt.statements
    names = _names(prompt) or [prompt.name]
    news = [wording_of(key) for key in news_in(statements)]
    labels = [wording.label for wording in news if wording] or ["the week to come"]
    values = {
        "{me}": prompt.name,
        "{other}": pick(names[:4], random),
        "{topic}": pick(list(prompt.topics) or ["small things"], random),
        "{news}": pick(labels, random),
        "{work}": prompt.fact("Occupation"),
    }
    places = range(1, max(2, len(statements) + 1))
    lines = []
    for text in random.sample(phrases()["insights"], 5):
        because = sorted(random.sample(places, min(3, len(places))))
        lines.append(f"{filled(text, values)} (because of {', '.join(map(str, because))})")
    return numbered(lines)


def transcript(prompt: Prompt) -> list[tuple[str, str]]:
    """(speaker, text) of each line of the conversation in the prompt."""
    start = max(prompt.text.rfind("Conversation between"), prompt.text.rfind("Conversation so far"))
    return _LINE.findall(prompt.text[start:])


def _other(prompt: Prompt) -> str:
    return prompt.between(f"Conversation between {prompt.name} and ", ":")


def _names(prompt: Prompt) -> list[str]:
    """The other people in the memories, the most frequent first."""
    found = _NAME.findall("\n".join(prompt.statements))
    people = [name for name in found if name != prompt.name and not _PLACE.search(name)]
    return sorted(dict.fromkeys(people), key=lambda name: -people.count(name))


_NAME = re.compile(
    r"\b(?!(?:For|From|With|On|In|At|The|When|After)\b)[A-Z][a-zé]+ (?:de )?[A-Z][a-zé]+\b"
)
"""First name and surname; a capital word at the beginning of a sentence is no first name."""
_PLACE = re.compile(r"Caf|Inn\b|Green|College|Market|House|Lodge|Street|Workshop")
