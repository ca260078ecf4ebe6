"""How a world looks in the viewer: which recorded data are labels, places, speech and memories.

An appearance is data: the viewer executes no code of a world. The defaults fit any world: they read
what bodies' states and events contain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from metropolis.names import cut
from metropolis.types import MetropolisError
from metropolis.world.entities import thaw

LABEL_KEYS = ("doing", "action", "activity", "status")
"""Keys of a body's state that are its label if `Appearance.label` is None; the first one counts."""
TEXT_LETTERS = 2000
"""Longer texts are cut in the viewer."""
SAYS, THINKS = "says", "thinks"
"""The kinds of moments that show speech and thoughts; other moments have their event's kind."""


class Memories(msgspec.Struct, frozen=True):
    """The form of the memories in an agent's saved mind: a list of objects, one per memory."""

    path: str
    """Keys that lead to the list, separated by dots."""
    text: str = "text"
    """Key of a memory's text."""
    kind: str = "kind"
    """Key of a memory's category."""
    created_s: str = "created_s"
    """Key of a memory's time: simulated seconds since the midnight before step 0."""
    triple: tuple[str, str, str] = ("subject", "predicate", "object")
    """Keys of subject, predicate and object of a memory's event."""
    importance: str = "importance"
    """Key of a memory's importance, from 1 to 10."""
    evidence: str = "evidence"
    """Key of the indices, in the list, of the memories on which a memory is based."""


class Schedule(msgspec.Struct, frozen=True):
    """The form of the day's plan in an agent's saved mind: lists of objects in order of time."""

    hours: str
    """Keys that lead to the entries of the whole day, separated by dots."""
    tasks: str
    """Keys that lead to the entries that are planned in detail, separated by dots."""
    what: str = "what"
    """Key of an entry's text."""
    start_s: str = "start_s"
    """Key of an entry's beginning: simulated seconds since the midnight before step 0."""
    end_s: str = "end_s"
    """Key of an entry's end: simulated seconds since the midnight before step 0."""


class Appearance(msgspec.Struct, frozen=True):
    """The keys with which the viewer finds what to show in the recorded data of a world.

    `label`, `emoji`, `place` and `asleep` are keys of a body's state.
    """

    label: str | None = None
    """Key of a text: what the agent does. None: the first of `LABEL_KEYS` that exists."""
    emoji: str = "emoji"
    """Key of an emoji for what the agent does."""
    place: str = "place"
    """Key of the name of the place at which the agent is."""
    asleep: str = "asleep"
    """Key of a boolean: whether the agent is asleep."""
    speech: dict[str, str] = {}
    """Kind of event -> key of its data that contains what its source says."""
    dialogue: dict[str, str] = {}
    """Kind of event -> key of its data that contains a list of pairs (speaker, text)."""
    thought: dict[str, str] = {}
    """Kind of event -> key of its data that contains what its source thinks."""
    told: dict[str, str] = {}
    """Kind of event -> key of its data that contains the name or names of the listeners. Of kinds
    that are not listed, all agents who perceive the event are listeners."""
    memories: Memories | None = None
    """None: the viewer shows the texts and numbers of an agent's saved mind as its memories."""
    details: dict[str, str] = {}
    """Field of an agent in the viewer of Generative Agents -> keys that lead to its value in the
    agent's saved mind, separated by dots."""
    factors: dict[str, float] = {}
    """Field of `details` -> the factor that converts its number to the unit of that viewer."""
    addresses: dict[str, list[str]] = {}
    """Field of an agent in the viewer of Generative Agents that is a place -> keys that lead to the
    parts of the place's name below the map, from the largest."""
    goal: str = ""
    """Keys that lead to the tile [x, y] to which the agent walks, separated by dots."""
    partner: str = ""
    """Keys that lead to the name of the agent with whom it is in conversation."""
    until_s: list[str] = []
    """Keys that lead to the time at which the activity is planned to end, in simulated seconds
    since the midnight before step 0; the first one that exists counts."""
    schedule: Schedule | None = None
    """None: minds have no plan of the day."""
    places: str = ""
    """Keys that lead to the places that the agent knows, {sector: {arena: [object]}}."""

    @property
    def state_keys(self) -> tuple[tuple[str, ...], str, str, str]:
        """The keys of label (the first one that exists counts), emoji, place and asleep."""
        labels = LABEL_KEYS if self.label is None else (self.label,)
        return labels, self.emoji, self.place, self.asleep


class Look(msgspec.Struct, frozen=True, omit_defaults=True):
    """The visible state of an agent, as the appearance reads it from its body."""

    label: str = ""
    emoji: str = ""
    place: str = ""
    asleep: bool = False


def check_appearance(appearance: Any, whose: str) -> None:
    """Raise MetropolisError unless `appearance` is one, with fields of the right types."""
    if not isinstance(appearance, Appearance):
        raise MetropolisError(
            f"the appearance of {whose} is {cut(appearance)}; it should be a metropolis.Appearance"
        )
    try:
        msgspec.convert(msgspec.to_builtins(appearance), Appearance)
    except (ValueError, TypeError) as error:
        raise MetropolisError(f"the appearance of {whose}: {error}") from None
    labels, *others = appearance.state_keys
    for key in (*labels, *others):
        if any(letter < " " or letter in '"\\' for letter in key):
            raise MetropolisError(
                f"the appearance of {whose} names the key {cut(key)} of states; a key has no "
                "quotation marks, backslashes or control characters"
            )


def look_of(appearance: Appearance, state: Mapping[str, Any]) -> Look:
    """The look of a body with `state`."""
    labels, emoji, place, asleep = appearance.state_keys
    label = next((state[key] for key in labels if state.get(key) is not None), None)
    return Look(
        text_of(label), text_of(state.get(emoji)), text_of(state.get(place)),
        state.get(asleep) is True,
    )  # fmt: skip


def utterances(
    appearance: Appearance, kind: str, source: str, data: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """What an event shows: (agent, kind of moment, text), once or, of a dialogue, per line."""
    if kind in appearance.dialogue:
        for line in _list(data.get(appearance.dialogue[kind])):
            pair = _list(line)
            if len(pair) == 2:
                yield text_of(pair[0]), SAYS, text_of(pair[1])
    elif kind in appearance.speech:
        yield source, SAYS, text_of(data.get(appearance.speech[kind]))
    elif kind in appearance.thought:
        yield source, THINKS, text_of(data.get(appearance.thought[kind]))
    else:
        yield source, kind, text_of(" ".join(text_of(value) for value in data.values()))


def listeners(appearance: Appearance, kind: str, data: Mapping[str, Any]) -> list[str] | None:
    """The names that an event says it was told to; None: it does not say."""
    if kind not in appearance.told:
        return None
    named = data.get(appearance.told[kind])
    return [named] if isinstance(named, str) else [text_of(name) for name in _list(named)]


def remembered(memories: Memories, mind: Any) -> Iterator[tuple[str, str, float | None]]:
    """(text, kind, created_s) of each memory of a saved mind; None: it has no time."""
    for memory in objects_at(mind, memories.path):
        known_s = number_of(memory.get(memories.created_s))
        yield text_of(memory.get(memories.text)), text_of(memory.get(memories.kind)), known_s


def details_of(appearance: Appearance, mind: Any) -> dict[str, Any]:
    """Field -> its value in a saved mind; None where the mind has none."""
    values = {field: value_at(mind, path) for field, path in appearance.details.items()}
    for field, factor in appearance.factors.items():
        number = number_of(values.get(field))
        if number is not None:
            values[field] = number * factor
    return values


def text_of(value: Any) -> str:
    """A value of a world as a text for people; empty for None."""
    if value is None:
        return ""
    if not isinstance(value, str):
        value = json.dumps(thaw(value), ensure_ascii=False)
    return str(value[:TEXT_LETTERS])


def value_at(mind: Any, path: str) -> Any:
    """The value to which keys lead, separated by dots; None: there is none."""
    for key in path.split("."):
        mind = mind.get(key) if isinstance(mind, dict) else None
    return mind


def objects_at(mind: Any, path: str) -> list[dict[str, Any]]:
    """The objects of the list to which keys lead, separated by dots."""
    return [of for of in _list(value_at(mind, path)) if isinstance(of, dict)]


def number_of(value: Any) -> float | None:
    """`value` if it is a number, else None."""
    return value if isinstance(value, int | float) else None


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
