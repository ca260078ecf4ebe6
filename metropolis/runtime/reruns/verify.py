"""`verify`: checks that a run's history equals lockstep's for the same answers.

The run is repeated in lockstep, with its journal in place of the model: no call is paid for. Of a
long run only some parts are repeated, each from a checkpoint drawn by a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from metropolis.llm.base import LLMError
from metropolis.runtime.folder.comparison import first_difference
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.reruns.rerun import Rerun
from metropolis.types import AgentError, CausalityError, MetropolisError, Step
from metropolis.world.base import Agent, World
from metropolis.world.checks import check_function, seed_of, whole_number
from metropolis.world.record import StepRecord
from metropolis.world.user_errors import explanation_of

AGENT_STEPS_MAX = 250_000
"""Longer runs are verified in parts by default: some 40 s of CPU for SmallVille."""
PARTS_MAX = 4


@dataclass(frozen=True)
class Deviation:
    """The first difference between the run and lockstep."""

    step: Step
    agent: str | None
    """Name of the agent or thing that differs; None if no single one can be named."""
    what: str


@dataclass(frozen=True)
class Verified:
    """The result: without a deviation the run is verified in `parts`."""

    steps: Step
    """Number of steps of the run."""
    first: Step
    """The run's first own step: a branch shares earlier steps with the run it forked."""
    parts: tuple[tuple[Step, Step], ...]
    """Ranges of equal steps, the end excluded."""
    deviation: Deviation | None = None

    @property
    def complete(self) -> bool:
        """Whether every own step of the run is equal."""
        return self.deviation is None and self.parts == ((self.first, self.steps),)

    def __str__(self) -> str:
        if self.deviation is not None:
            at = self.deviation
            who = "" if at.agent is None else f", {at.agent!r}"
            return f"not verified: lockstep differs at step {at.step}{who}: {at.what}"
        if self.complete and self.first:
            return (
                f"verified: steps {self.first} to {self.steps - 1}, all of the branch's own, are "
                "equal to lockstep's"
            )
        if self.complete:
            return f"verified: all {self.steps:,} steps are equal to lockstep's"
        if not self.parts:
            return "not verified: no step was run again"
        count = sum(end - first for first, end in self.parts)
        parts = ", ".join(f"{first} to {end - 1}" for first, end in self.parts)
        return (
            f"verified: {count:,} of {self.steps:,} steps are equal to lockstep's"
            f" ({parts}); the others were not run again"
        )


def verify(
    run: str | Path,
    world: World,
    agents: Sequence[Agent],
    *,
    steps: Step | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    on_step: Callable[[StepRecord], object] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Verified:
    """Compare the history of the run in the folder `run` with lockstep's; the folder is only read.

    Args:
        world, agents: those of the run, in their initial state; they are not changed.
        steps: maximum number of steps to repeat; a longer run is verified in up to PARTS_MAX parts
            from checkpoints. None: AGENT_STEPS_MAX agent-steps.
        seed: of the choice of checkpoints.
        options: as passed to the run's `World.reset`.
        on_step: called with every equal step.
        should_stop: called after every step; returns whether to stop early.

    An answer missing from the journal is a deviation, and is not bought. Raises MetropolisError
    if there is no run, if `agents` have been used in a run, or if all its answers were bought
    where no journal is kept. Errors not caused by the world or the agents are passed on.
    """
    if steps is not None:
        steps = whole_number("steps", steps, 1)
    seed = seed_of(seed)
    check_function("on_step", on_step)
    check_function("should_stop", should_stop)
    on_step, should_stop = on_step or (lambda _: None), should_stop or (lambda: False)
    rerun = Rerun(RunDirectory(Path(run)), world, agents, options or {})
    recorded = rerun.origin.recorded_steps
    if rerun.answers.answered and not len(rerun.answers):
        raise MetropolisError(
            f"{run}: cannot be verified: its journal holds none of its {rerun.answers.answered:,} "
            "answers, as when workers on Ray have bought them; a rerun would buy them again"
        )
    if steps is None:
        steps = AGENT_STEPS_MAX // len(agents) or 1
    verified = Verified(recorded, rerun.origin.first_step, ())
    for first, end in _parts(rerun, verified, steps, seed):
        verified = _part(rerun, agents, verified, first, end, on_step, should_stop)
        if verified.deviation is not None or should_stop():
            break
    return verified


def _parts(rerun: Rerun, run: Verified, steps: Step, seed: int) -> list[tuple[Step, Step]]:
    """The ranges of steps to repeat."""
    if run.steps - run.first <= steps:
        return [(run.first, run.steps)]
    kept = {step for step in rerun.origin.checkpoints.steps() if run.first <= step < run.steps}
    starts = sorted(kept | {run.first})
    chosen = sorted(Random(seed).sample(starts, min(PARTS_MAX, len(starts), steps)))
    ends = [*chosen[1:], run.steps]
    share = steps // len(chosen)
    return [(first, min(first + share, end)) for first, end in zip(chosen, ends, strict=True)]


def _part(
    rerun: Rerun,
    agents: Sequence[Agent],
    before: Verified,
    first: Step,
    end: Step,
    on_step: Callable[[StepRecord], object],
    should_stop: Callable[[], bool],
) -> Verified:
    """Extend `before` by the results of the steps from `first` to below `end`."""
    step = first
    deviation = None
    start = rerun.checkpoint(first)
    if start.step != first:
        raise MetropolisError(f"{rerun.origin.checkpoints.folder}: step {first} is missing")
    try:
        for known, record in rerun.steps(start, end):
            if found := first_difference(known, record):
                deviation = Deviation(step, found.name, found.what)
            missing = rerun.answers.missing
            if deviation is not None or (missing and missing.step <= step) or should_stop():
                break
            on_step(record)
            step += 1
    except Exception as error:
        sentence = explanation_of(error)  # errors of agents and worlds have an explanation
        if sentence is None and not isinstance(error, (AgentError, CausalityError, LLMError)):
            raise
        deviation = Deviation(step, None, sentence or f"{error}")
    missing = rerun.answers.missing
    if missing is not None and (deviation is None or missing.step <= deviation.step):
        agent = agents[missing.agent].name
        if rerun.answers.made_other_request(missing):
            what = f"makes another request for {missing.function} than it did"
        else:
            what = f"the journal holds no answer to its call of {missing.function}"
        deviation = Deviation(missing.step, agent, what)
    parts = (*before.parts, (first, step)) if step > first else before.parts
    return replace(before, parts=parts, deviation=deviation)
