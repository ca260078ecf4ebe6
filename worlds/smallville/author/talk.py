"""Conversations: whether to talk, what to say, and what stays of it."""

from __future__ import annotations

import re
from random import Random

from metropolis.worlds.smallville.author.lines import Scene, say
from metropolis.worlds.smallville.author.prompt import Prompt, match, news_in, pick

_LINE = re.compile(r"^([A-Z][\w.'-]+(?: [\w.'-]+)+): (.+)$", re.MULTILINE)
_HEARD = re.compile(
    r"(?:Have you heard\?|Did you know\?|Listen to this\.|By the way:) (.+?[.!])(?: |$)"
)
KNOWN_SHARE, STRANGER_SHARE, AGAIN_SHARE = 0.5, 0.3, 0.12
"""How readily one talks with somebody one knows, hardly knows, or has talked with today."""


def decide_to_talk(prompt: Prompt, random: Random) -> str:
    """Rather with those one knows, and rather once a day."""
    other = prompt.between(", and sees ", ",").strip()
    share = KNOWN_SHARE if other in prompt.text.split("It is ")[0] else STRANGER_SHARE
    if "have talked earlier" in prompt.text:
        share = AGAIN_SHARE
    return "yes" if random.random() < share else "no"


def decide_to_react(prompt: Prompt, random: Random) -> str:  # noqa: ARG001
    """Now the one, now the other."""
    return "wait" if random.random() < 0.3 else "go on"


def relationship(prompt: Prompt, random: Random) -> str:
    """What is remembered of the other, and a word on how it feels."""
    other = prompt.between("that may bear on ", ":")
    about = [statement for statement in prompt.statements if other in statement]
    told = next((statement for statement in about if other.split()[0] in statement), "")
    if not told:
        return (
            f"{prompt.first_name} knows {other} by sight and from a few words in passing; they are"
            " on friendly terms, as neighbours are, and neither knows much of the other's days."
        )
    feeling = pick(
        [
            f"{prompt.first_name} likes {other.split()[0]} and is glad of every chance to talk.",
            f"They get on well, and {prompt.first_name} trusts {other.split()[0]}.",
            f"{prompt.first_name} thinks warmly of {other.split()[0]}, without saying so often.",
        ],
        random,
    )
    return f"{told} {feeling}"


def utterance(prompt: Prompt, random: Random) -> str:
    """The next line, in JSON."""
    return say(Scene(prompt), random)


def summary(prompt: Prompt, random: Random) -> str:  # noqa: ARG001
    """The news in it, or what they liked to talk about."""
    lines = " ".join(text for _, text in transcript(prompt))
    told = _HEARD.findall(lines)
    label = match("labels", " ".join(told)) or match("labels", lines)
    if label:
        return str(label)
    topic = re.search(r"(?:thinking about|talk about|go on about|mind is on) ([^,.?!]+)", lines)
    words = topic[1] if topic and not re.match(r"(?:it|that|my)\b", topic[1]) else ""
    return words or "how the day is going"


def planning_thought(prompt: Prompt, random: Random) -> str:
    """What to do about what was said."""
    other, lines = _other(prompt), " ".join(text for _, text in transcript(prompt))
    name = prompt.name
    if "lantern festival" in lines:
        return f"{name} should be at the lantern festival on Mill Green at six this evening."
    for told in _HEARD.findall(lines):
        return f"{name} should keep in mind what {other} and {prompt.first_name} spoke of: {told}"
    return pick(
        [
            f"{name} should look in on {other} again before the week is out.",
            f"{name} should take a little more time for people like {other}.",
            f"{name} has no need to change any plans after talking with {other}.",
        ],
        random,
    )


def memo(prompt: Prompt, random: Random) -> str:
    """The other's news, or one's own that the other knows now, or what the other cares about."""
    other, name = _other(prompt), prompt.name
    spoken = transcript(prompt)
    for speaker, text in spoken:
        for told in _HEARD.findall(text):
            if speaker == other:
                return f"{name} heard news from {other}: {told}"
    for speaker, text in spoken:
        for told in _HEARD.findall(text):
            if speaker == name:
                return f"{name} told {other} the news: {told}"
    topics = [
        found
        for speaker, text in spoken
        if speaker == other
        for found in re.findall(r"(?:thinking about|go on about|mind is on) ([^,.?!]+)", text)
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
    """About those who occur most in the memories."""
    names = _names(prompt) or [prompt.name]
    first, last = names[0], names[-1]
    asked = [
        f"What matters most to {prompt.name} at present?",
        f"How do {prompt.name} and {first} stand with each other?",
        f"What does {last} need, and who could help?",
    ]
    if any("lantern festival" in statement for statement in prompt.statements):
        asked[2] = "What does the lantern festival mean to the people of Alderbrook?"
    return "\n".join([f" {asked[0]}", f"2) {asked[1]}", f"3) {asked[2]}"])


def insights(prompt: Prompt, random: Random) -> str:
    """Five, each on statements that bear it out."""
    name, statements = prompt.name, prompt.statements
    names = _names(prompt) or [name]
    news = news_in("\n".join(statements))
    found = [
        f"{name} is drawn to {pick(names, random)} and seeks such company",
        f"{name} puts a great deal into the work as {prompt.fact('Occupation')}",
        f"{pick(names, random)} is somebody on whom {prompt.first_name} can count",
        f"{name} cares about {pick(prompt.topics or ['small things'], random)}",
        pick(
            [
                f"{name} likes the quiet parts of the day best",
                f"{name} notices more than is said aloud",
                f"{name} is at ease among people who are busy",
            ],
            random,
        ),
    ]
    if news:
        label = match("labels", news[0]) or "one thing"
        found[0] = f"{name} feels that all of Alderbrook talks of {label}"
    places = range(1, max(2, len(statements) + 1))
    lines = []
    for text in found:
        because = sorted(random.sample(places, min(3, len(places))))
        lines.append(f"{text} (because of {', '.join(map(str, because))})")
    return "\n".join([f" {lines[0]}", *(f"{i}) {line}" for i, line in enumerate(lines[1:], 2))])


def transcript(prompt: Prompt) -> list[tuple[str, str]]:
    """Who said what, from the conversation in the prompt."""
    start = max(prompt.text.rfind("Conversation between"), prompt.text.rfind("Conversation so far"))
    return _LINE.findall(prompt.text[start:])


def _other(prompt: Prompt) -> str:
    return prompt.between(f"Conversation between {prompt.name} and ", ":")


def _names(prompt: Prompt) -> list[str]:
    """The others in the memories, the most frequent first."""
    found = re.findall(r"\b[A-Z][a-zé]+ [A-Z][a-zé]+\b", "\n".join(prompt.statements))
    people = [name for name in found if name != prompt.name and not _PLACE.search(name)]
    return sorted(dict.fromkeys(people), key=lambda name: -people.count(name))


_PLACE = re.compile(r"Caf|Inn\b|Green|College|Market|House|Lodge|Street|Workshop")
