"""`--verify`: a run that has ended is compared with lockstep before its summary is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from metropolis.cli.run_options import RunOptions
from metropolis.progress import progress_bar
from metropolis.runtime.run_directory import RunDirectory
from metropolis.runtime.verify import AGENT_STEPS_MAX, Verified, verify
from metropolis.types import MetropolisError, Step

Interruptible = Callable[[Callable[[], None]], Any]
"""Of a function to call at Ctrl-C: a context in which it is."""

_OPTIONS = (
    click.option(
        "--verify",
        is_flag=True,
        help="Run it again in lockstep at the end, from the answers in its journal, and compare.",
    ),
    click.option(
        "--verify-steps",
        metavar="N",
        type=click.IntRange(1),
        help="Verify N steps at most, of a longer run those after checkpoints drawn by its seed. "
        f"[default: as many as make {AGENT_STEPS_MAX:,} agent-steps]",
    ),
)


def verify_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def verification(
    options: RunOptions, verify: bool, verify_steps: Step | None
) -> Verification | None:
    """What was asked for; None: nothing. Raises MetropolisError where it cannot be had."""
    if not verify:
        if verify_steps is not None:
            raise MetropolisError("--verify-steps says how much to --verify; give both, or neither")
        return None
    if "ray" in options.workers:
        raise MetropolisError(
            "--verify runs again from the journal, where workers on Ray write no answers; leave it "
            "out, or run with a number of --workers"
        )
    return Verification(options, verify_steps)


class Verification:
    """Of a run with `options`."""

    def __init__(self, options: RunOptions, steps: Step | None) -> None:
        self._options, self._steps, self.interrupted = options, steps, False

    def __call__(self, folder: Path, interruptible: Interruptible, *, quiet: bool) -> Verified:
        """Verify the run in `folder`, until Ctrl-C."""
        scenario = self._options.scenario()  # as at the beginning
        with (
            progress_bar(RunDirectory(folder).recorded, "steps", quiet=quiet) as (
                advance,
                describe,
            ),
            interruptible(self._interrupt),
        ):
            describe("verifying")
            return verify(
                folder,
                scenario.world,
                scenario.agents,
                steps=self._steps,
                seed=self._options.seed,
                on_step=lambda _: advance(1),
                enough=lambda: self.interrupted,
            )

    def _interrupt(self) -> None:
        self.interrupted = True
