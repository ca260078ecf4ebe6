"""Execute a run from the command line until it ends or is stopped; shared by the commands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from shutil import rmtree
from threading import Event
from typing import Any

import click

from metropolis.cli.ctrl_c import STATUS_INTERRUPTED, ended_by_ctrl_c
from metropolis.cli.run_folders import new_folder
from metropolis.cli.run_options import RunOptions, options_of
from metropolis.cli.run_report import print_summary, summary_of, write_json
from metropolis.cli.run_view import check_viewer, shown
from metropolis.cli.story import story_line
from metropolis.cli.terminal import discard_output
from metropolis.cli.verification import Verification, verification
from metropolis.durable import UnwritableError
from metropolis.llm.base import Backend
from metropolis.llm.model_choice import ModelChoice
from metropolis.names import did_you_mean
from metropolis.progress import progress_bar
from metropolis.runtime.folder.run_directory import RunDirectory, TakenError
from metropolis.runtime.live.configuration import check_extras
from metropolis.runtime.live.result import INTERRUPTED, RunResult
from metropolis.runtime.live.setup import checked_steps
from metropolis.runtime.live.simulation import Simulation
from metropolis.runtime.live.stored import MEMORY, portable_address
from metropolis.sim.virtual import VirtualInstances
from metropolis.types import MetropolisError, Step
from metropolis.world.scenario import Scenario, told
from metropolis.world.user_code import describe_error_in, file_of
from metropolis.world.user_errors import explanation_of

FINISHED, STATUS_BUDGET, STATUS_DIFFERS = 0, 3, 4


def continue_run(
    folder: Path,
    changed: Mapping[str, Any],
    check: tuple[bool, Step | None],
    *,
    trust: bool,
    as_json: bool,
    quiet: bool,
    view: bool,
) -> int:
    """Continue the run in `folder` with the options `changed`; return the exit status.

    `check` holds the arguments of `verification`.
    """
    options = options_of(folder, changed, trust=trust)
    _check_models(options, folder)
    verify, scenario = verification(options, *check), options.scenario()
    how = {"trust": trust, "as_json": as_json, "quiet": quiet, "view": view}
    return run_scenario(options, scenario, folder, verify, resume=True, **how)


def _check_models(options: RunOptions, folder: Path) -> None:
    """Raise MetropolisError if the run in `folder` would repeat steps with other models."""
    directory = RunDirectory(folder)
    about = directory.read()
    kept = about["about"]
    is_stored = options.store != MEMORY and portable_address(options.store, folder) == kept["store"]
    if options.models == ModelChoice.parse(kept["model"]) or is_stored:  # a store repeats no step
        return
    checkpoint = directory.open(True, about["world"], about["seed"], kept)
    first, end = checkpoint.step if checkpoint else 0, directory.intact_steps
    if first < end:
        raise MetropolisError(
            f"{folder}: resuming repeats steps {first} to {end - 1}, recorded with other options "
            f"of --model; omit --model, or branch with: metropolis fork {folder} --at {end} "
            "--replay-llm --model …"
        )


def run_scenario(
    options: RunOptions,
    scenario: Scenario,
    out: Path | None,
    verify: Verification | None,
    *,
    resume: bool,
    trust: bool = False,
    as_json: bool,
    quiet: bool,
    view: bool,
) -> int:
    """Run `scenario`; print its story, its summary and the result of `verify`; `view`: show a page.

    Returns the exit status.
    """
    if view:
        check_viewer()
    steps = options.last_step(scenario)  # raises on a wrong length
    recorded = RunDirectory(out).intact_steps if resume and out is not None else 0
    checked_steps(scenario.world, steps, recorded)  # before repeated steps are cut off
    backend = checked_backend(options, scenario)  # before the folder is created
    try:
        simulation, folder = _create_run(
            options, scenario, backend, out, resume=resume, trust=trust
        )
    except UnwritableError as error:
        if resume:
            raise
        raise MetropolisError(f"{error}; name another folder with --out") from None
    with shown(simulation, folder) if view else nullcontext():
        return _complete(
            simulation,
            options,
            scenario,
            backend,
            folder,
            steps,
            verify,
            as_json=as_json,
            quiet=quiet,
        )


def _complete(
    simulation: Simulation,
    options: RunOptions,
    scenario: Scenario,
    backend: Backend,
    folder: Path,
    steps: Step,
    verify: Verification | None,
    *,
    as_json: bool,
    quiet: bool,
) -> int:
    printed = _print_notes(simulation.notes)
    with _explained(simulation, options.world, steps, folder):
        if not quiet:
            for record in RunDirectory(folder).records(simulation.first_step):
                scenario.story(record)  # already printed; later sentences depend on it
        interrupted = _run(simulation, scenario, steps, story_to_stderr=as_json, quiet=quiet)
    _print_notes(simulation.notes[printed:])
    result, verified = simulation.result(), None
    if verify is not None and not interrupted:
        verified = verify(folder, quiet=quiet)
    if not scenario.functions:  # else they were checked at the start
        _print_unused_functions(options.models, result)
    reused = backend.reused if isinstance(backend, VirtualInstances) else None
    summary = summary_of(result, scenario, steps, options, folder, verified, reused, quiet=quiet)
    if as_json:
        write_json(summary)
    else:
        print_summary(summary)
    if result.stopped is not None:
        click.echo(
            f"metropolis: {result.stopped}; {_progress(result.steps, steps, folder)}", err=True
        )
    elif verify is not None and interrupted:
        click.echo("metropolis: interrupted; the run is complete, and not verified", err=True)
        return STATUS_INTERRUPTED
    if verified is not None and verified.deviation is not None:
        return STATUS_DIFFERS
    if result.stopped == INTERRUPTED or (verify is not None and verify.interrupted):
        return STATUS_INTERRUPTED
    return FINISHED if result.stopped is None else STATUS_BUDGET


@contextmanager
def _explained(simulation: Simulation, world: str, steps: Step, folder: Path) -> Iterator[None]:
    """Raise an error of the run as a sentence that also says how to continue the run."""
    try:
        yield
    except BrokenPipeError:
        discard_output()
        progress = _progress(simulation.result().steps, steps, folder)
        raise MetropolisError(f"the reader of the story has ended; {progress}") from None
    except (Exception, SystemExit) as error:
        sentence = explanation_of(error)
        if sentence is None and isinstance(error, MetropolisError):
            sentence = f"{error}"
        sentence = sentence or describe_error_in(str(file_of(world)), error)
        if sentence is None or steps < simulation.first_step:
            raise
        progress = _progress(simulation.result().steps, steps, folder)
        raise MetropolisError(f"{sentence}; {progress}") from error


def _print_unused_functions(models: ModelChoice, result: RunResult) -> None:
    """Print the functions for which a model is named although no call had them."""
    for function in sorted(models.by_function.keys() - result.by_function.keys()):
        meant = did_you_mean(function, result.by_function)
        click.echo(f"metropolis: no call had the function {function!r} of --model{meant}", err=True)


def _print_notes(notes: Sequence[str]) -> int:
    """Print notes on damaged files; return their number."""
    for note in notes:
        click.echo(f"metropolis: {note}", err=True)
    return len(notes)


def checked_backend(options: RunOptions, scenario: Scenario) -> Backend:
    """Return the backend. Raises MetropolisError if it is unknown or does not answer.

    The same if the run needs an extra that is not installed.
    """
    check_extras(options.store, options.workers)
    backend = options.backend(scenario, lambda news: click.echo(f"metropolis: {news}", err=True))
    if not isinstance(backend, VirtualInstances):
        asyncio.run(_check(options.backend(scenario)))  # not the run's own connections
    return backend


async def _check(backend: Backend) -> None:
    try:
        await backend.check()
    finally:
        await backend.close()


def _create_run(
    options: RunOptions,
    scenario: Scenario,
    backend: Backend,
    out: Path | None,
    *,
    resume: bool,
    trust: bool,
) -> tuple[Simulation, Path]:
    """Create the run and its folder; clean up a new folder if the run cannot start."""
    if out is not None and out.exists() and not out.is_dir():
        raise MetropolisError(f"{out}: is not a folder; name another path with --out")
    was_there = out is not None and out.exists()
    was_empty = not was_there or (out is not None and not any(out.iterdir()))
    folder = out or new_folder(options.world)
    try:
        simulation = Simulation(
            scenario.world,
            scenario.agents,
            options.client(backend),
            options.configuration(folder, resume=resume, trust=trust),
        )
    except TakenError:
        raise  # another process took the folder: its files stay
    except BaseException:
        if was_empty and folder.exists():
            _empty(folder)
            if not was_there:
                folder.rmdir()
        raise
    return simulation, folder


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            rmtree(path)
        else:
            path.unlink()


def _run(
    simulation: Simulation, scenario: Scenario, steps: Step, *, story_to_stderr: bool, quiet: bool
) -> bool:
    """Run to the end; whether Ctrl-C was pressed, even if no step was left."""
    agents, pressed = len(scenario.agents), Event()

    def interrupt() -> None:
        pressed.set()
        simulation.interrupt()

    left = max(0, steps - simulation.first_step)
    with (
        progress_bar(left * agents, "agent-steps", quiet=quiet) as (advance, _),
        ended_by_ctrl_c(interrupt),
        closing(simulation.steps(steps)) as records,
    ):
        for record in records:
            advance(agents)
            if quiet:
                continue
            for sentence in told(scenario, record):
                click.echo(story_line(scenario.world, record.step, sentence), err=story_to_stderr)
    return pressed.is_set()


def _progress(step: Step, steps: Step, folder: Path) -> str:
    return f"the run is at step {step} of {steps}; continue with: metropolis resume {folder}"
