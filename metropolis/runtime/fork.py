"""What-if branches: a new run that begins in the middle of another.

A branch of RUN at step S has RUN's first S steps as its past, and may differ from there on: by an
edit of the world and of what agents have in mind, by the model, by the seed. Any step that RUN has
passed will do. Where it has no checkpoint the steps since the one before are run again, from RUN's
own answers only, and compared with its history. RUN is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from metropolis.llm.backends.replay import Replay
from metropolis.llm.base import Completion, LLMError, Request
from metropolis.llm.client import Client
from metropolis.llm.journal import Journal, read_journal
from metropolis.runtime.beginning import begin
from metropolis.runtime.checkpoint import Checkpoint
from metropolis.runtime.history import line_of, whole_lines
from metropolis.runtime.moment import Edit, edited
from metropolis.runtime.recorder import calls_below
from metropolis.runtime.run_directory import Origin, RunDirectory
from metropolis.runtime.simulation import Simulation
from metropolis.types import MetropolisError, Step
from metropolis.world.base import Agent, World
from metropolis.world.record import StepRecord
from metropolis.world.saving import save


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
) -> None:
    """Begin a branch in the new folder `out`; `Simulation(…, out=out, resume=True)` runs it.

    Args:
        run: the folder of the run to leave: finished, interrupted or under way.
        world, agents: what it is a run of, as at its beginning; they are not changed.
        at: the first step of the branch's own.
        edit: changes the `Moment` at that step.
        replay_llm: reuse the run's answers beyond `at` while what is asked stays equal.
        seed: of all randomness from there on, of sampling, too; None: as in the run.
        options: as passed to the run's `World.reset`.
        on_step: told of every step that is run again.

    Raises MetropolisError when the run has not come so far, when what it did cannot be done again
    from its own answers, and when the edit leaves something that no world can begin with.
    """
    origin, branch = RunDirectory(Path(run)), RunDirectory(Path(out))
    about = origin.read()
    lineage = origin.lineage
    _check(origin, about, world, at)
    checkpoint = _checkpoint(origin, about, world, agents, at, options or {}, on_step)
    changed: tuple[str, ...] = ()
    seed_before: int = lineage[-1].seed if lineage else about["seed"]
    if edit is not None:
        checkpoint, changed = edited(checkpoint, world, agents, edit, seed_before)
    branch.make()
    calls, now_s = _copy_past(origin, branch, at)
    branch.checkpoints.add(replace(checkpoint, calls=calls, now_s=now_s))
    _copy_answers(origin, branch, inf if replay_llm else at)
    new = Origin(
        str(origin.root.resolve()),
        at,
        seed_before if seed is None else seed,
        replay_llm,
        edit and f"{edit.__module__}.{getattr(edit, '__qualname__', type(edit).__name__)}",
        changed,
    )
    branch.lineage = (*lineage, new)
    branch.describe(world.name, about["seed"], about["about"])  # last: now it is a run


def _copy_past(origin: RunDirectory, branch: RunDirectory, at: Step) -> tuple[int, float]:
    """Copy what happened below step `at`; how many calls, and what the run's clock showed then."""
    calls, now_s = 0, 0.0
    with origin.history.open("rb") as file, branch.history.open("wb") as copied:
        copied.writelines(islice(whole_lines(file), at))
    with origin.calls.open("rb") as file, branch.calls.open("wb") as copied:
        for line, (_, _, call) in calls_below(at, file):
            copied.write(line)
            calls += 1
            now_s = max(now_s, call.completed or 0.0)
    return calls, now_s


def _copy_answers(origin: RunDirectory, branch: RunDirectory, below: float) -> None:
    journal = Journal(branch.journal)
    for key, completion in read_journal(origin.journal)[0].items():
        if key.step < below:
            journal.put(key, completion)
    journal.close()


def _check(origin: RunDirectory, about: Mapping[str, Any], world: World, at: Step) -> None:
    lineage = origin.lineage
    if about["world"] != world.name:
        raise MetropolisError(f"{origin.root}: is a run of {about['world']}, not of {world.name}")
    if lineage and at < lineage[-1].step:
        raise MetropolisError(
            f"{origin.root}: is a branch that begins at step {lineage[-1].step}; fork the run it "
            f"has left, {lineage[-1].run}, at {at}"
        )
    if not origin.journal.exists():
        raise MetropolisError(
            f"{origin.journal}: is not there; put the journal of the run's answers there"
        )
    recorded = origin.recorded
    if not 0 <= at <= recorded:
        raise MetropolisError(
            f"{origin.root}: its files tell of {recorded} steps; it can be forked at 0 to "
            f"{recorded}, not at {at}"
        )


def _checkpoint(
    origin: RunDirectory,
    about: Mapping[str, Any],
    world: World,
    agents: Sequence[Agent],
    at: Step,
    options: Mapping[str, Any],
    on_step: Callable[[StepRecord], object] | None,
) -> Checkpoint:
    """The checkpoint of step `at`, as `origin` passed it."""
    start = origin.checkpoints.newest(at)
    if start is None:
        begun = begin(world, [agent.name for agent in agents], about["seed"], options)
        start = Checkpoint(0, begun, [], {agent.name: save(agent) for agent in agents}, 0, 0.0)
    if start.step == at:
        return start
    with TemporaryDirectory() as scratch:
        again = RunDirectory(Path(scratch))
        again.lineage = origin.lineage
        again.describe(world.name, about["seed"], {})
        _copy_past(origin, again, start.step)
        again.checkpoints.add(start)
        answers = _Recorded(origin.journal)
        simulation = Simulation(
            world,
            deepcopy(list(agents)),
            Client(answers, retries=0),
            mode="lockstep",
            seed=about["seed"],
            options=options,
            out=again.root,
            resume=True,
        )
        try:
            _run_again(simulation, origin, at, on_step or (lambda _: None))
        except Exception as error:
            if answers.missing is None and not isinstance(error, _OtherwiseError):
                raise
            raise MetropolisError(_why(origin, answers, agents, at, error)) from error
        found = again.checkpoints.newest(at)
        assert found is not None
        return found


class _OtherwiseError(MetropolisError):
    """A step happens otherwise than it did."""


class _Recorded(Replay):
    """Answers from the run's journal; remembers the first request that it does not know."""

    missing: Request | None = None

    async def complete(self, request: Request) -> Completion:
        """See Replay."""
        try:
            return await super().complete(request)
        except LLMError:  # agents may live with it, as they may have done in the run
            self.missing = self.missing or request
            raise

    def asked_otherwise(self, request: Request) -> bool:
        """Whether an answer to something else is known in the place of `request`."""
        place = request.agent, request.step, request.function
        return any((key.agent, key.step, key.function) == place for key in self._answers)


def _run_again(
    simulation: Simulation,
    origin: RunDirectory,
    at: Step,
    on_step: Callable[[StepRecord], object],
) -> None:
    with origin.history.open("rb") as file, closing(simulation.steps(at)) as steps:
        lines = islice(whole_lines(file), simulation.first_step, at)
        for record, line in zip(steps, lines, strict=True):
            if line_of(record) + b"\n" != line:
                raise _OtherwiseError(f"step {record.step} happens otherwise than it did")
            on_step(record)


def _why(
    origin: RunDirectory,
    answers: _Recorded,
    agents: Sequence[Agent],
    at: Step,
    error: Exception,
) -> str:
    """Why a step cannot be forked, and which can."""
    kept = ", ".join(map(str, origin.checkpoints.steps())) or "none"
    missing = answers.missing
    if missing is not None and not answers.asked_otherwise(missing):
        return (
            f"{origin.journal}: holds no answer to {agents[missing.agent].name!r} in step "
            f"{missing.step}, {missing.function}, so step {at} cannot be come to again; step "
            f"{missing.step} can be forked, and those with a checkpoint: {kept}"
        )
    if missing is not None:
        error = MetropolisError(
            f"{agents[missing.agent].name!r} asks otherwise in step {missing.step} than it did"
        )
    return (
        f"{origin.root}: {error}, so step {at} cannot be come to again: the world or its agents "
        f"have changed since; steps with a checkpoint can be forked: {kept}"
    )
