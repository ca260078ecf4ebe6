"""The folder of a run: its parameters, its records, and the state needed to resume it.

run.json         the world of the run, and data of its creator for resuming it
history.jsonl    a line per step (`metropolis.runtime.folder.history`)
calls.jsonl      a line per LLM call, in the order of steps
journal.jsonl    every answer paid for, in order of arrival (`metropolis.llm.journal`)
checkpoints/     the whole simulation between two steps (`metropolis.runtime.folder.checkpoint`)
store.json       the location of the run's store (`metropolis.runtime.live.stored`)
timeline/        what happened when (`metropolis.timeline`)
trace.parquet    written at the end: for `metropolis replay`
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec

from metropolis.durable import DamagedError, check_format, reachable, read_object, write_object
from metropolis.llm.journal import Journal
from metropolis.names import cut
from metropolis.runtime.folder.calls_file import CallsFile, calls_by_step, read_calls
from metropolis.runtime.folder.checkpoint import CHECKPOINT, Checkpoint, Checkpoints
from metropolis.runtime.folder.history import (
    HISTORY,
    HistoryWriter,
    bodies_written,
    read_history,
    record_of,
)
from metropolis.runtime.folder.run_trace import RunTrace, StepParts
from metropolis.runtime.folder.signature import distrust_reason, sign
from metropolis.timeline.format import CALLS, files_of
from metropolis.timeline.format import FOLDER as TIMELINE
from metropolis.trace.parquet import IN_RUN, write_pieces
from metropolis.trace.schema import Float32
from metropolis.types import MetropolisError, Step
from metropolis.world.record import StepRecord

FORMAT = "metropolis-run"
VERSION = 2


@dataclass(frozen=True)
class Origin:
    """The run and the step at which a branch begins, and how the branch differs from there on."""

    run: str
    """The folder of the forked run."""
    step: Step
    seed: int
    """Seed of all randomness in the branch."""
    replay_llm: bool
    """Whether the branch reuses answers of the forked run."""
    edit: str | None
    edited: tuple[str, ...]
    """Names whose mind, body or state the edit changed."""


_FIELDS: dict[str, Any] = {
    "world": str,
    "seed": int,
    "run": Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")],
    "lineage": tuple[Origin, ...],
    "about": dict[str, Any],
}
"""The fields of run.json, and their types."""


class TakenError(MetropolisError):
    """The folder contains another run, or something else."""


class RunDirectory:
    """The files of one run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.history = root / "history.jsonl"
        self.calls = root / "calls.jsonl"
        self.journal = root / "journal.jsonl"
        self.checkpoints = Checkpoints(root / "checkpoints")
        self.trace = root / IN_RUN
        self.timeline = root / TIMELINE
        self._run = root / "run.json"
        self.lineage: tuple[Origin, ...] = ()
        """The runs that a branch descends from, its parent last; set by `read`."""
        self.notes: list[str] = []
        """Messages on damage and its repair."""
        self.distrust: str | None = None
        """The reason not to trust that this user wrote run.json; None: they did, or it was not read
        yet."""

    @property
    def run(self) -> str | None:
        """The unique id in the run's files; None: neither created nor read yet."""
        return self.checkpoints.run

    @property
    def starts(self) -> int:
        """How many processes have run steps, by their timelines; 0: they wrote none."""
        return len(files_of(self.timeline, CALLS))

    def may_lack_answers(self, *, resumed: bool) -> bool:
        """Whether times of the run may lack those of answers that were known before.

        `resumed`: whether another process has continued it. One that had nothing to do counts only
        if the run has no timeline.
        """
        replayed = f"{self.read()['about'].get('llm')}".startswith("replay:")
        return replayed or bool(self.lineage) or (resumed and self.starts != 1)

    def open(
        self, resume: bool, world: str, seed: int, about: Mapping[str, Any]
    ) -> Checkpoint | None:
        """Begin or resume a run here; return the checkpoint to resume from, if there is one.

        Raises MetropolisError if the folder contains another run, or none.
        """
        if resume:
            found = self.read()
            if (found["world"], found["seed"]) != (world, seed):
                raise MetropolisError(
                    f"{self._run}: holds a run of the world {cut(found['world'])} with seed "
                    f"{found['seed']}; it cannot be resumed as {cut(world)} with seed {seed}"
                )
            return self._latest()
        self.make()
        self.describe(world, seed, about)
        return None

    def _latest(self) -> Checkpoint | None:
        """The newest intact checkpoint with intact files below it; None: resume from step 0.

        Raises MetropolisError if it precedes the start of a branch, or has another seed.
        """
        steps = self.checkpoints.steps()
        reached = self._reached(steps)
        notes: dict[Path | None, str] = {}  # one damaged file invalidates many checkpoints
        found = None
        for step in reversed([step for step in steps if step >= self.first_step]):
            try:
                found = self.checkpoints.read(step)
                self._check_past(found, *reached)
                break
            except DamagedError as error:
                found = None
                notes.setdefault(error.path, error.flaw)
        if found is None:
            self.check_beginning("".join(f" ({note})" for note in [*notes.values()][-1:]))
        where = f"checkpoint of step {found.step}" if found else "beginning"
        self.notes += [f"{note}; the run now continues from its {where}" for note in notes.values()]
        return found

    def check_beginning(self, why: str = "") -> None:
        """Raise DamagedError if this is a branch, which cannot begin at step 0."""
        for branch in self.lineage[-1:]:
            raise DamagedError(
                f"{self.root}: is a branch without an intact checkpoint{why}",
                f"fork {branch.run} at {branch.step} again",
            )

    def check_past(self, checkpoint: Checkpoint) -> None:
        """Raise MetropolisError if the run's files do not match the checkpoint."""
        self._check_past(checkpoint, *self._reached([checkpoint.step]))

    def _reached(self, steps: Sequence[Step]) -> tuple[dict[Step, tuple[str, int]], DamagedError]:
        """The history's digest and number of calls at each of `steps`, as far as it is intact, and
        the error of a checkpoint of a later step.
        """
        digest, step = hashlib.sha256(), 0
        reached = {0: (digest.hexdigest(), 0)}
        try:
            for step, line in enumerate(read_history(self.history, self.run), 1):
                digest.update(line.content + b"\n")
                if step in steps:
                    reached[step] = digest.hexdigest(), line.calls
        except DamagedError as damage:
            return reached, damage
        return reached, self._ends(step, max(steps, default=0))

    @property
    def first_step(self) -> Step:
        """The run's first own step: a branch shares earlier steps with the run that it forked."""
        return self.lineage[-1].step if self.lineage else 0

    @property
    def seed(self) -> int:
        """The seed of the run's own steps, which a branch may change; call `read` first."""
        return self.lineage[-1].seed if self.lineage else self._seed

    def _check_past(
        self, checkpoint: Checkpoint, reached: Mapping[Step, tuple[str, int]], damage: DamagedError
    ) -> None:
        """`reached` and `damage` are the results of `_reached`."""
        past = checkpoint.past
        path = self.checkpoints.path(checkpoint.step)
        if past is None:
            raise CHECKPOINT.damaged(path, 1, "it describes no files")
        if past.seed != self.seed:
            raise MetropolisError(
                f"{path}: continues with seed {past.seed}, but {self._run} has seed {self.seed}; "
                "restore the file as the run wrote it"
            )
        if checkpoint.step not in reached:
            raise damage
        history_sha256, calls = reached[checkpoint.step]
        if past.history_sha256 != history_sha256:
            raise self._differ(self.history, "histories")
        end = past.calls
        for mark, _ in read_calls(self.calls, past.calls.lines, self.run):
            end = mark
        if past.calls.lines != calls or end != past.calls:
            raise self._differ(self.calls, "calls")

    def _differ(self, path: Path, what: str) -> DamagedError:
        return DamagedError(
            f"{path}: does not agree with {self.checkpoints.folder}, which records other {what}",
            HISTORY.repair,
            path,
        )

    def _ends(self, steps: Step, newest: Step) -> DamagedError:
        return HISTORY.damaged(
            self.history, steps + 2, f"it ends here, and there is a checkpoint of step {newest}"
        )

    def open_journal(self, checkpoint: Checkpoint | None) -> Journal:
        """The run's journal, continued from `checkpoint`; see `Journal`."""
        past = checkpoint.past if checkpoint else None
        return Journal(
            self.journal,
            self.run,
            since=checkpoint.step if checkpoint and not (self.root / "store.json").exists() else 0,
            reaches=past.journal if past else None,
        )

    def open_records(self, step: Step) -> tuple[HistoryWriter, CallsFile]:
        """The history and calls files, continued at `step`."""
        history = HistoryWriter(self.history, step, self.run)
        history.notes = self.notes
        return history, CallsFile(self.calls, history.calls, self.run)

    def check_free(self) -> None:
        """Raise TakenError if the folder exists and is not empty."""
        if self.root.exists() and (not self.root.is_dir() or any(self.root.iterdir())):
            advice = "resume the run in it" if self._run.exists() else "it holds no run: remove it"
            raise TakenError(f"{self.root}: exists already; {advice}, or choose another folder")

    def make(self) -> None:
        """Create it. Raises TakenError if it is not empty, MetropolisError if that fails."""
        self.check_free()
        self.checkpoints.run = secrets.token_hex(8)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if self.root.stat().st_uid == os.geteuid():
                self.root.chmod(0o700)
        except OSError as error:
            raise MetropolisError(
                f"{self.root}: cannot be made for the run's files: {error.strerror}; choose "
                "another folder"
            ) from None

    def describe(
        self, world: str, seed: int, about: Mapping[str, Any], *, signed: bool = True
    ) -> None:
        """Write run.json, atomically.

        It is `signed` unless it may repeat contents that this user has not vouched for.
        """
        self.checkpoints.run = self.run or secrets.token_hex(8)
        content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "world": world}
        content |= {"seed": seed, "lineage": [asdict(origin) for origin in self.lineage]}
        content |= {"run": self.run, "about": about}
        content = json.loads(json.dumps(content))  # normalize to the types that reading returns
        if signed:
            content["signature"] = sign(self._run.name, content)
        write_object(self._run, content)

    def write_trace(self, trace: RunTrace) -> None:
        """Write the trace of the whole run."""
        for unfinished in self.root.glob(f".{self.trace.name}.*"):  # left by killed processes
            unfinished.unlink()
        write_pieces(trace.pieces(), self.trace, 0o600)

    def read(self) -> dict[str, Any]:
        """Read run.json; raises MetropolisError if there is no run here, or it is damaged.

        Damage is detected before `distrust` is set: trust cannot help there.
        """
        if not reachable(self._run).exists():
            if self.history.exists() or self.journal.exists():
                raise MetropolisError(
                    f"{self._run}: does not exist; restore the file, or remove the "
                    "folder if a fork into it was interrupted"
                )
            raise MetropolisError(f"{self.root}: holds no run; give the folder of one")
        found = read_object(self._run, "restore the file as the run wrote it")
        check_format(self._run, found, FORMAT, VERSION, "run the world again")
        for name, kind in _FIELDS.items():
            try:
                msgspec.convert(found.get(name), kind)
            except ValueError as error:  # missing, or of a wrong form
                raise MetropolisError(f"{self._run}: {name}: {error}") from None
        self._seed, self.checkpoints.run = found["seed"], found["run"]
        self.lineage = msgspec.convert(found["lineage"], _FIELDS["lineage"])
        signature = found.pop("signature", None)
        self.distrust = distrust_reason(self._run.name, found, signature)
        return found

    @property
    def recorded_steps(self) -> Step:
        """Number of steps in the history. Raises MetropolisError if it is damaged."""
        steps = sum(1 for _ in read_history(self.history, self.run))
        newest = max(self.checkpoints.steps(), default=0)
        if steps < newest:
            raise self._ends(steps, newest)
        return steps

    @property
    def intact_steps(self) -> Step:
        """Number of intact steps in the history."""
        steps = 0
        with suppress(DamagedError):
            for _ in read_history(self.history, self.run):
                steps += 1
        return steps

    def records(self, steps: Step) -> Iterator[StepRecord]:
        """The first `steps` steps, or as many as the history contains."""
        for line in islice(read_history(self.history, self.run), steps):
            yield HISTORY.decoded(line.line, record_of)

    def steps_from(
        self, first: Step, beginning: Float32, names: Sequence[str]
    ) -> Iterator[StepParts]:
        """The parts of a trace for the steps from `first`; `beginning` is (agents, 2), at step 0.

        Earlier steps are not kept in memory.
        """
        ids = {name: i for i, name in enumerate(names)}
        at = beginning.copy()
        calls = calls_by_step(self.calls, self.run)
        of = next(calls, None)
        for step, line in enumerate(read_history(self.history, self.run)):
            while of is not None and of[0] < step:
                of = next(calls, None)
            if step >= first:
                yield at.copy(), of[1] if of is not None and of[0] == step else []
            for name, position in HISTORY.decoded(line.line, bodies_written):
                if name in ids:
                    at[ids[name]] = position
