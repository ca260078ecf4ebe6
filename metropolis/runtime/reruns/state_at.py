"""The state of a recorded run at any step; the run is only read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metropolis.runtime.folder.checkpoint import Checkpoint
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.reruns.fork import check_step, checkpoint_at
from metropolis.runtime.reruns.rerun import Rerun
from metropolis.types import Step
from metropolis.world.base import Agent, World
from metropolis.world.saving import copy_of, restore


def state_at(
    run: str | Path,
    world: World,
    agents: Sequence[Agent],
    at: Step | None = None,
) -> Checkpoint:
    """The world and the minds of the run in the folder `run` before step `at`; None: at its end.

    `world` and `agents` are those of the run, in their initial state; they are not changed. Steps
    since the last checkpoint are run again from the run's own answers. Raises MetropolisError if
    the run has not reached `at`, or if its steps cannot be reproduced.
    """
    origin = RunDirectory(Path(run))
    step = origin.recorded_steps if at is None else at  # first: the run may go on meanwhile
    rerun = Rerun(origin, world, agents, {})
    check_step(origin, step)
    return checkpoint_at(rerun, agents, step, lambda _: None)


def agent_at(state: Checkpoint, agents: Sequence[Agent], name: str) -> Agent:
    """A copy of the agent `name` as it is in `state`; `agents`, those of the run, stay."""
    agent = copy_of(next(one for one in agents if one.name == name))
    restore(agent, state.agents[name])
    return agent
