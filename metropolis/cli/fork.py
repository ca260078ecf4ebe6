"""`metropolis fork`: start a what-if branch at a step of a run, and run it to its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from metropolis.cli.live import checked_backend, run_scenario
from metropolis.cli.resume import later_options
from metropolis.cli.run_folders import new_folder, run_folder
from metropolis.cli.run_options import options_of
from metropolis.cli.verification import verification
from metropolis.command_options import Integer, OutputFolder, on_command_line
from metropolis.progress import progress_bar
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.reruns.edit_context import Edit
from metropolis.runtime.reruns.fork import fork
from metropolis.store.factory import open_server
from metropolis.types import MetropolisError, Step
from metropolis.world.user_code import load_function

AT = click.Option(
    ["--at"], metavar="STEP", type=Integer(0), required=True, help="The first step of the branch."
)
EDIT = click.Option(
    ["--edit"],
    metavar="FILE.py[:FUNCTION]",
    help="A function that edits the run at STEP through a metropolis.Moment. "
    "[default FUNCTION: edit]",
)
OF_BRANCH = [
    click.Option(
        ["--replay-llm"], is_flag=True, help="Reuse the run's answers to identical requests."
    ),
    click.Option(
        ["--seed"],
        type=Integer(0, 2**63 - 1),
        help="Seed of all randomness from STEP on. [default: as in RUN]",
    ),
    click.Option(
        ["--out"],
        type=OutputFolder(),
        help="A new folder for the branch's files. [default: runs/WORLD-N]",
    ),
]


def _fork(run: str, at: Step, edit: str | None, **given: Any) -> int:
    """Start a branch of RUN at STEP, and run it to its end.

    RUN is a run's folder, or its name under runs/: finished, interrupted or in progress. It is only
    read. The branch shares RUN's steps before STEP. From STEP on it differs by --edit, --seed,
    --llm or --model, or by new answers. Steps since RUN's last checkpoint before STEP are run again
    from RUN's own answers. Options that are not given are those of RUN.
    """
    return run_branch(run, at, lambda: None if edit is None else _edit(edit), **given)


def run_branch(
    run: str,
    at: Step,
    make_edit: Callable[[], Edit | None],
    replay_llm: bool,
    seed: int | None,
    out: Path | None,
    trust: bool,
    as_json: bool,
    quiet: bool,
    view: bool,
    verify: bool,
    verify_steps: Step | None,
    **given: Any,
) -> int:
    """Start a branch and run it to its end; the exit status.

    `make_edit` is called once the run's options have been checked.
    """
    origin = run_folder(run)
    changed = on_command_line(given)
    options = options_of(origin, changed, trust=trust)
    check = verification(options, verify, verify_steps)
    scenario = options.scenario()
    edit = make_edit()
    if (steps := options.last_step(scenario)) < at <= RunDirectory(origin).recorded_steps:
        raise MetropolisError(f"the branch begins at step {at}; it cannot end at {steps}")
    checked_backend(options, scenario)  # before the folder is created
    open_server(options.store).close()
    folder = out or new_folder(options.world)
    kept = [step for step in RunDirectory(origin).checkpoints.steps() if step <= at]
    try:
        with progress_bar(at - max(kept, default=0), "steps", quiet=quiet) as (advance, describe):
            describe("replaying")
            fork(
                origin,
                scenario.world,
                scenario.agents,
                at=at,
                out=folder,
                edit=edit,
                replay_llm=replay_llm,
                seed=seed,
                on_step=lambda _: advance(1),
                trust=trust,
                about=options.about(folder),
            )
    except BaseException:
        if out is None and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        raise
    how = {"as_json": as_json, "quiet": quiet, "view": view}
    return run_scenario(options, scenario, folder, check, resume=True, **how)


def _edit(name: str) -> Edit:
    return load_function(name, "changes a metropolis.Moment", default="edit")


command = click.Command(
    "fork",
    params=[click.Argument(["run"]), AT, EDIT, *OF_BRANCH, *later_options()],
    callback=_fork,
    help=_fork.__doc__,
)
