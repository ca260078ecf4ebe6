"""One side of the page, a run or a lane of a replay: its chunks by name and number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any, Protocol

import msgspec

from metropolis.trace.metadata import graph_to_json
from metropolis.trace.schema import TraceMeta
from metropolis.types import MetropolisError, Step
from metropolis.viewer.data.call_texts import CallTexts
from metropolis.viewer.data.chunks import NoChunkError, chunk_steps, json_bytes
from metropolis.viewer.data.minds import Minds
from metropolis.viewer.data.place import map_of
from metropolis.viewer.data.timeline_columns import TimelineColumns

DIGITS_MAX = 9
"""Maximum digits of a number in the name of a chunk."""
NO_TIMELINE = "This run recorded no timeline: what happened when is not known, only each step."
NO_MINDS = "A replay has no minds: it repeats the calls of a trace, not what agents thought."


class Steps(Protocol):
    """Positions and moments of the recorded steps, in chunks."""

    steps: Step
    damage: str | None
    """Why they end earlier than the file, if they do."""

    @property
    def chunks(self) -> int:
        """The number of chunks, at least 1: without a step, the beginning."""

    def refresh(self) -> set[int]:
        """Read what is new; return the numbers of the chunks that changed."""

    def positions(self, number: int) -> bytes:
        """Float32 (steps of the chunk + 1, agents, 2): the positions at the beginning of each step,
        and those after the last one, which a trace may lack."""

    def moments(self, number: int) -> bytes:
        """JSON: what the agents do at the chunk's first step, and what happens in its steps."""


@dataclass
class Side:
    """See docs/viewer.md for its chunks; safe to use from several threads."""

    fixed: Mapping[str, Any]
    """The part of the chunk `meta` that never changes."""
    trace_meta: TraceMeta
    steps: Steps
    timeline: TimelineColumns
    texts: CallTexts
    minds: Minds | None
    """The agents' minds; None for replays, which have none."""
    is_live: Callable[[], bool] = lambda: False
    """Whether a process is running the side's run."""
    note: str | None = None
    """A sentence on the whole side."""
    _lock: Lock = field(default_factory=Lock)
    _was_live: bool = False

    def __post_init__(self) -> None:
        self.refresh()

    @cached_property
    def _fixed_meta(self) -> dict[str, Any]:
        meta = self.trace_meta
        return dict(self.fixed) | {
            "world": meta.name,
            "agents": meta.agents,
            "step_s": meta.step_s,
            "start": meta.start.isoformat(),
            "metric": meta.metric,
            "radius": meta.perception_radius,
            "velocity": meta.max_velocity,
            "map": None if meta.map is None else map_of(meta.map),
            "graph": None if meta.graph is None else graph_to_json(meta.graph),
            "chunk_steps": chunk_steps(len(meta.agents)),
        }

    def refresh(self) -> dict[str, list[int]]:
        """Read what is new; return the numbers of the chunks that changed by name.

        Raises MetropolisError if the files are of another format, or have been removed.
        """
        with self._lock:
            self._was_live = self.is_live()  # a run has ended once all that it wrote has been read
            try:
                changed = self.timeline.refresh()
                of_steps = self.steps.refresh()
            except OSError as error:
                raise _gone(error) from None
        if of_steps:
            changed |= {"positions": of_steps, "moments": of_steps}
        return {name: sorted(numbers) for name, numbers in changed.items()}

    def meta(self) -> dict[str, Any]:
        """The content of the chunk `meta`."""
        return self._fixed_meta | self.growing_meta()

    def growing_meta(self) -> dict[str, Any]:
        """What of `meta` changes while the side grows."""
        timeline = self.timeline
        damage = None if self._was_live else timeline.damage
        missing = None if timeline.is_there or damage else NO_TIMELINE
        notes = [self.note, self.steps.damage, damage, missing]
        counts = {"positions": self.steps.chunks, "moments": self.steps.chunks}
        return {
            "clock": "simulated" if timeline.simulated else "real",
            "steps": self.steps.steps,
            "functions": timeline.functions,
            "models": timeline.models,
            "instances": timeline.instances,
            "live": self._was_live,
            "counts": counts | timeline.counts,
            "calls": timeline.calls,
            "end_s": timeline.end_s,
            "note": " ".join(note for note in notes if note) or None,
        }

    def status(self) -> dict[str, Any]:
        """How far it is, as its files say."""
        timeline = self.timeline
        return {
            "state": "runs" if self._was_live else "ended",
            "floor": self.steps.steps,
            "newest": max(timeline.steps, self.steps.steps),  # either file may be ahead
            "calls": timeline.calls,
            "tokens": timeline.tokens,
        }

    def chunk(self, name: str, number: str) -> bytes:
        """The chunk `name/number`.

        Raises NoChunkError if there is none, MetropolisError if its file is damaged or missing.
        """
        with self._lock:
            try:
                return self._chunk(name, number)
            except OSError as error:
                raise _gone(error) from None
            except msgspec.DecodeError as error:
                raise MetropolisError(f"{name} {number} cannot be read: {error}") from None

    def _chunk(self, name: str, number: str) -> bytes:
        if name == "mind":
            agent, _, step = number.partition("-")
            if self.minds is None:
                return json_bytes({"memories": None, "note": NO_MINDS})
            return json_bytes(self.minds.mind(_number(agent), _number(step)))
        at = _number(number)
        match name:
            case "positions":
                return self.steps.positions(at)
            case "moments":
                return self.steps.moments(at)
            case "executions":
                return self.timeline.executions(at)
            case "calls":
                return self.timeline.calls_chunk(at)
            case "call":
                return json_bytes(self.texts.text(*self.timeline.call(at)))
            case "meta" if not at:
                return json_bytes(self.meta())
            case "ends" if not at:
                return self.timeline.ends()
            case "bounds" if not at:
                return self.timeline.bounds()
        raise NoChunkError(f"there is no chunk {name[:40]!r} {at}")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX):
        raise NoChunkError(f"{text[:40]!r} is not the number of a chunk")
    return int(text)


def _gone(error: OSError) -> MetropolisError:
    return MetropolisError(
        f"{error.filename}: cannot be read: {error.strerror}; has the folder been removed?"
    )
