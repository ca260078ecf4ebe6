"""What a run's agents show at the end of each step: position, look and conversation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from metropolis.runtime.folder.edits import edited_entities
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.folder.view_file import ViewFile
from metropolis.trace.shown import Lines
from metropolis.types import Position
from metropolis.world.appearance import SAYS, Appearance, Look, listeners, look_of, utterances
from metropolis.world.entities import Event
from metropolis.world.record import StepRecord


@dataclass(frozen=True)
class Frame:
    """What an agent shows after a step."""

    position: Position
    look: Look
    lines: Lines = ()
    """The conversation or the speech that the agent takes part in; empty: none."""
    in_dialogue: bool = False
    """Whether `lines` are a dialogue, which is shown until the agent's look changes."""


Frames = dict[str, Frame]
"""Name of an agent -> its frame."""


def initial_frames(view: ViewFile, names: Sequence[str]) -> Frames:
    """Return the frames before step 0; `names` are those of the agents, by id."""
    rows = zip(names, view.beginning, view.looks, strict=True)
    return {name: Frame(position, look) for name, position, look in rows}


def frames_of(
    directory: RunDirectory, appearance: Appearance, frames: Frames
) -> Iterator[tuple[Frames, StepRecord]]:
    """The frames after each recorded step; `frames` are those before step 0.

    A dialogue is shown by all who take part, from the step at which it is held until the agent's
    look changes; other speech is shown by its speaker for one step.
    """
    edited = edited_entities(directory)
    for record in directory.records(directory.recorded_steps):
        frames = dict(frames)
        for entity in edited.get(record.step, ()):
            if entity.name in frames:
                look = look_of(appearance, entity.state)
                frames[entity.name] = replace(frames[entity.name], look=look)
        for name, frame in frames.items():
            if frame.lines and not frame.in_dialogue:
                frames[name] = replace(frame, lines=())
        for name, body in record.writes.items():
            if body is not None and name in frames:
                before, look = frames[name], look_of(appearance, body.state)
                kept = before if look == before.look else Frame(body.position, look)
                frames[name] = replace(kept, position=body.position)
        for event in record.events:
            frames |= _speaking(appearance, event, frames)
        yield frames, record


def dialogue_of(appearance: Appearance, event: Event) -> tuple[set[str], Lines]:
    """The names of those who take part in a dialogue, and its lines; empty for other events."""
    if event.kind not in appearance.dialogue:
        return set(), ()
    lines = _lines(appearance, event)
    named = listeners(appearance, event.kind, event.data) or ()
    return {event.source, *named, *(speaker for speaker, _ in lines)}, lines


def _speaking(appearance: Appearance, event: Event, frames: Mapping[str, Frame]) -> Frames:
    names, lines = dialogue_of(appearance, event)
    if names:
        return {
            name: replace(frames[name], lines=lines, in_dialogue=True)
            for name in names & frames.keys()
        }
    if event.kind in appearance.speech and event.source in frames:
        before = frames[event.source]
        if not before.in_dialogue:
            lines = before.lines + _lines(appearance, event)
            return {event.source: replace(before, lines=lines)}
    return {}


def _lines(appearance: Appearance, event: Event) -> Lines:
    said = utterances(appearance, event.kind, event.source, event.data)
    return tuple((who, text) for who, kind, text in said if kind == SAYS)
