"""Short answers: ratings, triples, emoji, states of objects, places."""

from __future__ import annotations

import re
from random import Random

from metropolis.worlds.smallville.author.prompt import Prompt, match, matches, phrases, pick

_BEDROOM = re.compile(r"\broom \d|bedroom|'s room")
_PRIVATE = re.compile(rf"{_BEDROOM.pattern}|bath|wash|store")
_OF_STAFF = re.compile(rf"{_PRIVATE.pattern}|kitchen|office")
_WORK = re.compile(r"\bwork(?!ing in the garden)|\bshift|\bclass")
_SEATS = re.compile(r"bench|chair|sofa|(?<!billiard )table|desk|counter")
RATINGS = {"Event": (2, 0), "Thought": (5, 3), "Conversation": (4, 2)}
"""Kind of memory -> the rating of a text without remarkable words, and what is added to that of the
others. In recorded runs of Generative Agents events other than idle objects have 3.3 to 5.3 on
average, thoughts 5.4 to 7.3, chats 5.1 to 8.2."""
_PLAIN = ("Yes.", "That sounds right.", "I would think so.")


def plain(prompt: Prompt, random: Random) -> str:  # noqa: ARG001 -- every writer takes a prompt
    """An answer to an unknown question."""
    return random.choice(_PLAIN)


def poignancy(prompt: Prompt, random: Random) -> str:
    """A rating by the words of the text, and its kind."""
    told = ((kind, prompt.between(f"\n{kind}: ", "\n")) for kind in RATINGS)
    kind, text = next((one for one in told if one[1]), ("Event", ""))
    least, added = RATINGS[kind]
    words, reason = match("importance", text) or (least - added, "")
    rating = min(10, words + added + (random.random() < 0.4))
    return f"{rating}, {reason or pick(phrases()['everyday'], random)}"


def triple(prompt: Prompt, random: Random) -> str:  # noqa: ARG001
    """The sentence, split at its verb."""
    sentence = prompt.between("\nSentence: ", "\n").rstrip(".")
    found = re.match(
        r"(?P<who>[^,:]+?) (?:is|are) (?P<what>\w+(?: about)?) ?(?P<rest>.*)", sentence
    )
    if found is None:
        words = sentence.replace(",", "").split()
        verb = 3 if words[1:2] == ["de"] else 2
        return f"{' '.join(words[:verb])}, {words[verb] if len(words) > verb else 'is'}," + (
            f" {' '.join(words[verb + 1 : 12]) or 'there'})"
        )
    rest = found["rest"].replace(",", "").split()
    return f"{found['who'].removeprefix('the ')}, is {found['what']}, {' '.join(rest[:6]) or 'it'})"


def emoji(prompt: Prompt, random: Random) -> str:
    """An emoji by the words of the activity."""
    found = match("emoji", prompt.between("Activity: ", "\n"))
    return pick(found, random) if found else "🙂"


def thing_state(prompt: Prompt, random: Random) -> str:
    """A state by the kind of object."""
    thing = prompt.text[prompt.text.rfind(": the ") + 6 : -3]
    return pick(phrases()["states"].get(thing, phrases()["states"]["other"]), random)


def sector(prompt: Prompt, random: Random) -> str:  # noqa: ARG001
    """The place named in the task, otherwise in the plan, otherwise home."""
    places = prompt.fact("Known places").split(", ")
    for text in (prompt.between("is about to do this: ", "\n"), prompt.fact("It is part of")):
        named = [place for place in places if place.lower() in text.lower()]
        if named:
            return named[0]
        if _WORK.search(text) and prompt.fact("Works at") in places:
            return prompt.fact("Works at")
    home = prompt.fact("Home").split(",")[0]
    return home if home in places else places[0]


def arena(prompt: Prompt, random: Random) -> str:
    """A room that suits the task; the bedroom of another only if there is no other room."""
    listed = prompt.fact("Known rooms").split(", ")
    home, _, own = prompt.fact("Home").partition(", sleeps in the ")
    place = prompt.between(" goes to ", ".\n")
    is_home = place == home
    if not is_home:
        own = ""  # houses have rooms of the same names
    rooms = [room for room in listed if room == own or not _BEDROOM.search(room)] or listed
    task = prompt.between("is about to do this: ", "\n")
    if named := [room for room in rooms if f"in the {room}" in task]:
        return named[0]
    is_errand = place in task  # away from the plan
    for text in (task,) if is_errand else (task, prompt.fact("It is part of")):
        for wanted in matches("rooms", text):
            for kind in wanted.split("|"):
                if kind == "own room" and own in rooms:
                    return own
                if fitting := [room for room in rooms if kind in room]:
                    return pick(fitting, random)
    hidden = _PRIVATE if is_home else _OF_STAFF
    public = [room for room in rooms if not hidden.search(room) and (room != "garden")]
    return pick(public, random) if public else (own if own in rooms else rooms[0])


def thing(prompt: Prompt, random: Random) -> str:
    """The object that the task names, otherwise one that suits it."""
    things = prompt.fact("Known objects").split(", ")
    task = prompt.between("is about to do this: ", "\n")
    if named := [name for name in things if re.search(rf"\b{re.escape(name)}\b", task)]:
        return max(named, key=len)
    for wanted in matches("things", task):
        if fitting := [name for name in things if re.search(wanted, name)]:
            return pick(fitting, random)
    return pick([name for name in things if _SEATS.search(name)] or things, random)
