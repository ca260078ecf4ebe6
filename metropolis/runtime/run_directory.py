"""The folder of a run: what it was told, what happened, and what it needs to go on.

run.json         what it is a run of, and what whoever began it wants to find again
history.jsonl    a line per step (`metropolis.runtime.history`)
calls.jsonl      a line per LLM call, in the order of steps
journal.jsonl    every answer paid for, in the order they came (`metropolis.llm.journal`)
checkpoints/     the whole simulation between two steps (`metropolis.runtime.checkpoint`)
store.json       where else the run is kept (`metropolis.runtime.stored`)
trace.parquet    written at the end: for `metropolis replay`
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from metropolis.runtime.checkpoint import Checkpoint, Checkpoints
from metropolis.runtime.history import record_of, whole_lines
from metropolis.trace.schema import Float32
from metropolis.types import MetropolisError, Step
from metropolis.world.record import StepRecord

FORMAT = "metropolis-run"
VERSION = 1


@dataclass(frozen=True)
class Origin:
    """Where a branch has left another run, and how it differs from there on."""

    run: str
    """Its folder."""
    step: Step
    seed: int
    """Of all randomness in the branch."""
    replay_llm: bool
    """Whether answers of the other run are reused in the branch."""
    edit: str | None
    edited: tuple[str, ...]
    """Whose mind, body or state the edit has changed, by name."""


class TakenError(MetropolisError):
    """The folder of another run, or of something else."""


class RunDirectory:
    """The files of one run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.history = root / "history.jsonl"
        self.calls = root / "calls.jsonl"
        self.journal = root / "journal.jsonl"
        self.checkpoints = Checkpoints(root / "checkpoints")
        self.trace = root / "trace.parquet"
        self._run = root / "run.json"
        self.lineage: tuple[Origin, ...] = ()
        """Of a branch: the run it has left, after those that one has; known when it was read."""

    def open(
        self, resume: bool, world: str, seed: int, about: Mapping[str, Any]
    ) -> Checkpoint | None:
        """Begin a run here, or go on with one; the checkpoint to go on from, if there is one yet.

        Raises MetropolisError when the folder holds another run, or none.
        """
        mine = {"format": FORMAT, "version": VERSION, "world": world, "seed": seed}
        if resume:
            found = {name: value for name, value in self.read().items() if name in mine}
            if found != mine:
                raise MetropolisError(
                    f"{self._run}: holds a run of {found}; going on needs the same as {mine}"
                )
            return self.checkpoints.newest(self.recorded)
        self.make()
        self.describe(world, seed, about)
        return None

    def make(self) -> None:
        """Make it. Raises TakenError when something is in it, MetropolisError when it cannot be."""
        if self.root.exists() and (not self.root.is_dir() or any(self.root.iterdir())):
            raise TakenError(
                f"{self.root}: exists already; resume the run in it, or choose another folder"
            )
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MetropolisError(
                f"{self.root}: cannot be made for the run's files: {error.strerror}; choose "
                "another folder"
            ) from None

    def describe(self, world: str, seed: int, about: Mapping[str, Any]) -> None:
        """Write down what this is a run of; whole or not at all."""
        content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "world": world}
        content |= {"seed": seed, "lineage": [asdict(origin) for origin in self.lineage]}
        partial = self._run.with_suffix(".partial")
        partial.write_text(json.dumps(content | {"about": about}, indent=2) + "\n", "utf-8")
        partial.replace(self._run)

    def read(self) -> dict[str, Any]:
        """What the run is of; MetropolisError when there is no run here, or it is damaged."""
        try:
            found = json.loads(self._run.read_text("utf-8"))
        except OSError as error:
            raise MetropolisError(
                f"{self.root}: holds no run ({error}); give the folder of one"
            ) from error
        except ValueError as error:
            raise MetropolisError(
                f"{self._run}: is damaged ({error}); put back the file as the run has written it"
            ) from error
        if not isinstance(found, dict):
            raise MetropolisError(f"{self._run}: should be an object")
        try:
            self.lineage = msgspec.convert(found.get("lineage", ()), tuple[Origin, ...])
        except msgspec.ValidationError as error:
            raise MetropolisError(f"{self._run}: lineage: {error}") from None
        return found

    @property
    def recorded(self) -> Step:
        """How many steps the history tells of."""
        if not self.history.exists():
            return 0
        with self.history.open("rb") as file:
            return sum(1 for _ in whole_lines(file))

    def records(self, steps: Step) -> Iterator[StepRecord]:
        """The first `steps` steps, or as many as the history tells of."""
        if not self.history.exists():
            return
        with self.history.open("rb") as file:
            for line in islice(whole_lines(file), steps):
                yield record_of(line)

    def positions(self, beginning: Float32, names: Sequence[str], steps: Step) -> list[Float32]:
        """Where everybody stood at the beginning of each of the first `steps` steps.

        `beginning` is (agents, 2), at step 0.
        """
        ids = {name: i for i, name in enumerate(names)}
        at, positions = beginning.copy(), []
        for record in self.records(steps):
            positions.append(at.copy())
            for name, entity in record.writes.items():
                if name in ids and entity is not None:
                    at[ids[name]] = entity.position
        return positions
