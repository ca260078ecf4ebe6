"""What-if branches: a new run that begins in the middle of another.

A branch of RUN at step S shares RUN's first S steps, and may differ from there on: by an edit of
the world and the agents' minds, by the model, by the seed. S is any step that RUN has passed. If
RUN has no checkpoint of S, the steps since the previous checkpoint are run again, from RUN's own
answers only, and compared with its history. RUN itself is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path
from shutil import rmtree
from typing import Any

import msgspec

from metropolis.durable import DamagedError
from metropolis.line_file import Mark
from metropolis.llm.journal import Journal, read_journal
from metropolis.runtime.folder.calls_file import CallsFile, read_calls
from metropolis.runtime.folder.checkpoint import Checkpoint, Past
from metropolis.runtime.folder.history import HistoryWriter, line_of, read_history
from metropolis.runtime.folder.run_directory import Origin, RunDirectory
from metropolis.runtime.live.configuration import check_plain
from metropolis.runtime.reruns.edit_context import Edit, edited
from metropolis.runtime.reruns.rerun import Rerun
from metropolis.timeline.reader import TimelineFollower
from metropolis.timeline.writer import write_timeline
from metropolis.types import MetropolisError, Step
from metropolis.world.base import Agent, World
from metropolis.world.checks import check_function, check_options, seed_of, whole_number
from metropolis.world.record import StepRecord


def fork(
    run: str | Path,
    world: World,
    agents: Sequence[Agent],
    *,
    at: Step,
    out: str | Path,
    edit: Edit | None = None,
    replay_llm: bool = False,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
    on_step: Callable[[StepRecord], object] | None = None,
    trust: bool = False,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Begin a branch in the new folder `out`; `Simulation(…, out=out, resume=True)` runs it.

    Args:
        run: the folder of the run to fork: finished, interrupted or in progress.
        world, agents: those of the run, in their initial state; they are not changed.
        at: the first step that belongs to the branch.
        edit: changes the `Moment` at that step.
        replay_llm: reuse the run's answers beyond `at` for equal requests.
        seed: of all randomness from there on, including sampling; None: the run's.
        options: as passed to the run's `World.reset`.
        on_step: called with every step that is run again.
        trust: sign the copied parts of run.json even if their signature is not this user's.
        about: how the branch is to be run, as in `RunConfiguration`; None: as the run.

    Raises MetropolisError if the run has not reached `at`, if its steps cannot be reproduced
    from its own answers, or if the edited state is no valid start of a run.
    """
    if seed is not None:
        seed = seed_of(seed)
    check_function("edit", edit)
    check_function("on_step", on_step)
    check_options(about, "about")
    check_plain(about or {})
    at = whole_number("at", at)
    origin, branch = RunDirectory(Path(run)), RunDirectory(Path(out))
    if origin.root.resolve() in branch.root.resolve().parents:
        raise MetropolisError(
            f"{out}: is within the run {run}, which is only read; name another folder"
        )
    rerun = Rerun(origin, world, agents, options or {})
    described = origin.read()
    check_step(origin, at)
    checkpoint = checkpoint_at(rerun, agents, at, on_step or (lambda _: None))
    changed: tuple[str, ...] = ()
    seed_before = origin.seed
    if edit is not None:
        checkpoint, changed = edited(checkpoint, world, agents, edit, seed_before)
    new = Origin(
        str(origin.root.resolve()),
        at,
        seed_before if seed is None else seed,
        replay_llm,
        edit and _named(edit),
        changed,
    )
    branch.make()
    try:
        past, now_s = _copy_past(origin, branch, at, new.seed)
        past = replace(past, journal=_copy_answers(origin, branch, inf if replay_llm else at))
        _copy_timeline(origin, branch, at)
        branch.checkpoints.add(replace(checkpoint, now_s=now_s, past=past))
        branch.lineage = (*origin.lineage, new)
        known = trust or origin.distrust is None
        how = described["about"] if about is None else about
        branch.describe(world.name, described["seed"], how, signed=known)  # now a run
    except BaseException:
        rmtree(branch.root)
        raise


def _named(edit: Edit) -> str:
    name = getattr(edit, "__qualname__", None)
    return f"{edit}" if name is None else f"{edit.__module__}.{name}"


def _copy_past(
    origin: RunDirectory, branch: RunDirectory, at: Step, seed: int
) -> tuple[Past, float]:
    """Copy the records below step `at`; return their marks, and the time of the run's clock."""
    history = HistoryWriter(branch.history, 0, branch.run)
    for line in islice(read_history(origin.history, origin.run), at):
        history.append_line(line.content, line.calls - history.calls)
    now_s = 0.0
    copied = CallsFile(branch.calls, 0, branch.run)
    for _, call in read_calls(origin.calls, history.calls, origin.run):
        copied.append([call])
        now_s = max(now_s, call[2].completed or 0.0)
    history.close()
    copied.close()
    return Past(seed, history.sha256, copied.mark, None), now_s


def _copy_timeline(origin: RunDirectory, branch: RunDirectory, at: Step) -> None:
    """Copy what happened below step `at`, as far as it was recorded."""
    found = TimelineFollower(origin.timeline).poll()
    if found is not None:
        assert branch.run is not None
        meta = msgspec.structs.replace(found.meta, run=branch.run, number=0, first_step=None)
        write_timeline(branch.timeline, found.before(at, meta))


def _copy_answers(origin: RunDirectory, branch: RunDirectory, below: float) -> Mark:
    """Copy the answers; return the end of the branch's journal."""
    with closing(Journal(branch.journal, branch.run)) as journal:
        for key, completion in read_journal(origin.journal, origin.run, _listed(origin)):
            if key.step < below:
                journal.put(key, completion)
        return journal.mark


def _listed(origin: RunDirectory) -> Mark | None:
    """The answers that the newest intact checkpoint lists: the journal has at least these."""
    for step in reversed(origin.checkpoints.steps()):
        if step <= origin.recorded_steps:
            with suppress(DamagedError):
                past = origin.checkpoints.read(step).past
                return past.journal if past else None
    return None


def check_step(origin: RunDirectory, at: Step) -> None:
    """Raise MetropolisError unless the run has a state of its own at step `at`."""
    first = origin.first_step
    earlier = next((branch.run for branch in origin.lineage if at < branch.step), None)
    if earlier is not None:
        raise MetropolisError(
            f"{origin.root}: is a branch that begins at step {first}; use the original run, "
            f"{earlier}, at {at}"
        )
    recorded = origin.recorded_steps
    if not first <= at <= recorded:
        raise MetropolisError(
            f"{origin.root}: has {recorded} recorded steps; the step should be {first} to "
            f"{recorded}, not {at}"
        )


def checkpoint_at(
    rerun: Rerun, agents: Sequence[Agent], at: Step, on_step: Callable[[StepRecord], object]
) -> Checkpoint:
    """The state of the run at step `at`."""
    start = rerun.checkpoint(at)
    reached = start.step
    if reached == at:
        return start
    try:
        for known, record in rerun.steps(start, at):
            if line_of(known) != line_of(record):
                raise _DivergedError(f"step {record.step} differs from the recorded step")
            on_step(record)
            reached = record.step + 1
    except Exception as error:
        if rerun.answers.missing is None and not isinstance(error, _DivergedError):
            raise
        steps = f"step {reached}" if reached == start.step else f"steps {start.step} to {reached}"
        why = _why(rerun, agents, at, error)
        kept = ", ".join(map(str, rerun.origin.checkpoints.steps())) or "none"
        raise MetropolisError(
            f"{why}; {steps} can be shown or forked, and those with a checkpoint: {kept}"
        ) from error
    return rerun.checkpoint_after(at)


class _DivergedError(MetropolisError):
    """A repeated step differs from the recorded one."""


def _why(rerun: Rerun, agents: Sequence[Agent], at: Step, error: Exception) -> str:
    """Explain why the step cannot be reproduced."""
    origin, answers = rerun.origin, rerun.answers
    missing = answers.missing
    if missing is not None and not answers.made_other_request(missing):
        return (
            f"{origin.journal}: holds no answer to {agents[missing.agent].name!r} in step "
            f"{missing.step}, {missing.function}, so step {at} cannot be reproduced"
        )
    if missing is not None:
        error = MetropolisError(
            f"{agents[missing.agent].name!r} makes a different request in step {missing.step}"
        )
    return (
        f"{origin.root}: {error}, so step {at} cannot be reproduced: the world or its agents "
        "have changed since"
    )
