"""`metropolis resume`: continue a run that was stopped or has finished."""

from __future__ import annotations

from copy import copy
from typing import Any

import click

from metropolis.cli.live import continue_run
from metropolis.cli.run import command as run
from metropolis.cli.run_folders import latest_folder, run_folder
from metropolis.cli.run_options import FIXED_OPTIONS
from metropolis.command_options import on_command_line
from metropolis.types import Step


def later_options() -> list[click.Parameter]:
    """Return the options of `metropolis run` that may change mid-run, without their defaults."""
    fixed = {*FIXED_OPTIONS, "out", "resume", "estimate"}
    found = [copy(option) for option in run.params if option.name not in fixed]
    for option in found:
        assert isinstance(option, click.Option)
        option.show_default = False  # the default is the run's former value
        option.help = (option.help or "").partition(" [default")[0]
    return found


def _resume(
    run: str | None,
    trust: bool,
    as_json: bool,
    quiet: bool,
    view: bool,
    verify: bool,
    verify_steps: Step | None,
    **given: Any,
) -> int:
    """Continue RUN: a run's folder, or its name under runs/. The default is the latest run there.

    The history equals that of an uninterrupted run, however the run ended, and stored answers are
    not bought again. Options apply from here on; options that are not given keep their values.
    Other models are refused if the history has steps after the last checkpoint, which would be
    repeated. Larger --hours or --steps extend a finished run.
    """
    folder = latest_folder(None) if run is None else run_folder(run)
    check = verify, verify_steps
    how = {"trust": trust, "as_json": as_json, "quiet": quiet, "view": view}
    return continue_run(folder, on_command_line(given), check, **how)


command = click.Command(
    "resume",
    params=[click.Argument(["run"], required=False), *later_options()],
    callback=_resume,
    help=_resume.__doc__,
)
