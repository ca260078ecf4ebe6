"""What an agent remembers at a step, from the checkpoints of its run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from metropolis.line_file import read_document
from metropolis.runtime.folder.checkpoint import CHECKPOINT, Checkpoints
from metropolis.trace.schema import TraceMeta
from metropolis.types import Step
from metropolis.viewer.data.chunks import NoChunkError
from metropolis.world.appearance import Memories, remembered, text_of

MEMORIES_MAX = 500
"""The newest memories of a mind, which are shown."""
NO_MIND = "The run keeps the minds of its agents in its store, not in checkpoints."
NO_CHECKPOINT = "There is no checkpoint yet: a run writes one every few minutes and at its end."


class _Checkpoint(msgspec.Struct):
    agents: dict[str, msgspec.Raw]


class Minds:
    """The minds of the agents of the run in `folder`."""

    def __init__(
        self, folder: Path, run: str | None, meta: TraceMeta, memories: Memories | None
    ) -> None:
        self._checkpoints = Checkpoints(folder / "checkpoints", run)
        self._meta, self._memories = meta, memories
        start = meta.start
        self._start_s = start.hour * 3600 + start.minute * 60 + start.second

    def mind(self, agent: int, step: Step) -> dict[str, Any]:
        """`memories`, newest first, or None; and a `note`.

        From the first checkpoint that is not older than `step`, without what was added since; else
        from the newest one. Raises MetropolisError if it is damaged, NoChunkError if there is no
        such agent.
        """
        if not 0 <= agent < len(self._meta.agents):
            raise NoChunkError(f"there is no agent {agent}; there are {len(self._meta.agents)}")
        steps = self._checkpoints.steps()
        if not steps:
            return {"memories": None, "note": NO_CHECKPOINT}
        at = next((known for known in steps if known >= step), steps[-1])
        path = self._checkpoints.path(at)
        minds = read_document(path, CHECKPOINT, self._checkpoints.run, _Checkpoint).agents
        if (mind := minds.get(self._meta.agents[agent])) is None:
            return {"memories": None, "note": NO_MIND}
        # An agent may keep its memories in another order than that of their steps.
        kept = sorted(
            (each for each in self._read(msgspec.json.decode(mind)) if each["step"] <= step),
            key=itemgetter("step"),
        )
        note = None if at >= step and self._memories else f"As of the checkpoint of step {at}."
        return {"memories": kept[: -MEMORIES_MAX - 1 : -1], "note": note}

    def _read(self, mind: Any) -> Iterator[dict[str, Any]]:
        if self._memories is None:
            yield from _fields(mind)
            return
        for text, kind, created_s in remembered(self._memories, mind):
            yield {"text": text, "kind": kind, "step": self._step_at(created_s)}

    def _step_at(self, created_s: float | None) -> Step:
        if created_s is None:
            return 0
        return max(0, int((created_s - self._start_s) // self._meta.step_s))


def _fields(mind: Any) -> Iterator[dict[str, Any]]:
    """What a mind without a list of memories consists of."""
    for name, value in (mind if isinstance(mind, dict) else {"mind": mind}).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield {"text": text_of(text), "kind": name, "step": 0}
