"""`metropolis resume`: on with a run that was stopped, or has come to its end."""

from __future__ import annotations

from copy import copy
from typing import Any

import click

from metropolis.cli.live import go_on, on_command_line
from metropolis.cli.run import command as run
from metropolis.cli.run_options import BEGUN_WITH, latest_folder, run_folder
from metropolis.types import Step


def later_options() -> list[click.Parameter]:
    """The options of `metropolis run` that may change in mid-run, without their defaults."""
    fixed = {*BEGUN_WITH, "out", "resume", "estimate"}
    found = [copy(option) for option in run.params if option.name not in fixed]
    for option in found:
        assert isinstance(option, click.Option)
        option.show_default = False  # what the run was told before
        option.help = (option.help or "").partition(" [default")[0]
    return found


def _resume(
    run: str | None,
    trust: bool,
    as_json: bool,
    quiet: bool,
    verify: bool,
    verify_steps: Step | None,
    **given: Any,
) -> int:
    """Go on with RUN: a run's folder, or its name under runs/; or with the latest there.

    However it ended, the history is equal to the uninterrupted one, and answers that were kept are
    not bought again. Options count from here on; those left out stay as they were. Longer --hours
    or --steps prolong a run that has come to its end.
    """
    folder = latest_folder(None) if run is None else run_folder(run)
    check = verify, verify_steps
    how = {"trust": trust, "as_json": as_json, "quiet": quiet}
    return go_on(folder, on_command_line(given), check, **how)


command = click.Command(
    "resume",
    params=[click.Argument(["run"], required=False), *later_options()],
    callback=_resume,
    help=_resume.__doc__,
)
