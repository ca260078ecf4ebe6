"""`--verify`: compare a finished run with lockstep before its summary is printed."""

from __future__ import annotations

from pathlib import Path

import click

from metropolis.cli.ctrl_c import ended_by_ctrl_c
from metropolis.cli.run_options import RunOptions
from metropolis.command_options import with_options
from metropolis.progress import progress_bar
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.reruns.verify import AGENT_STEPS_MAX, Verified, verify
from metropolis.types import MetropolisError, Step

VERIFY_OPTIONS = with_options(
    click.option(
        "--verify",
        is_flag=True,
        help="At the end, repeat the run in lockstep with the journal's answers, and compare.",
    ),
    click.option(
        "--verify-steps",
        metavar="N",
        type=click.IntRange(1),
        help="Verify at most N steps. Of a longer run, verify parts that begin at checkpoints, "
        "which its seed draws. "
        f"[default: as many as make {AGENT_STEPS_MAX:,} agent-steps]",
    ),
)
"""Adds --verify and --verify-steps to a command."""


def verification(
    options: RunOptions, verify: bool, verify_steps: Step | None
) -> Verification | None:
    """Return the requested verification, or None. Raises MetropolisError if it is impossible."""
    if not verify:
        if verify_steps is not None:
            raise MetropolisError("--verify-steps limits --verify; give both, or neither")
        return None
    if "ray" in options.workers and options.mode != "optimistic":
        raise MetropolisError(
            "--verify needs the journal, and workers on Ray write no answers to it; omit it, "
            "or run with a number of --workers"
        )
    return Verification(options, verify_steps)


class Verification:
    """The verification of a run with `options`."""

    def __init__(self, options: RunOptions, steps: Step | None) -> None:
        self._options, self._steps, self.interrupted = options, steps, False

    def __call__(self, folder: Path, *, quiet: bool) -> Verified:
        """Verify the run in `folder`; Ctrl-C ends it early."""
        scenario = self._options.scenario()  # in its initial state
        with (
            progress_bar(RunDirectory(folder).recorded_steps, "steps", quiet=quiet) as (
                advance,
                describe,
            ),
            ended_by_ctrl_c(self._interrupt),
        ):
            describe("verifying")
            return verify(
                folder,
                scenario.world,
                scenario.agents,
                steps=self._steps,
                seed=self._options.seed,
                on_step=lambda _: advance(1),
                should_stop=lambda: self.interrupted,
            )

    def _interrupt(self) -> None:
        self.interrupted = True
