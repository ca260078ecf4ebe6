"""`metropolis run`: a world, live, to its end or until it is stopped; and on from there."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

import click
from click.core import ParameterSource

from metropolis.cli.run_options import (
    RunOptions,
    latest_folder,
    new_folder,
    options_of,
    whole_name,
)
from metropolis.cli.run_report import (
    print_estimate,
    print_summary,
    story_line,
    summary_of,
    write_json,
)
from metropolis.llm.base import Backend
from metropolis.progress import progress_bar
from metropolis.runtime.estimate import Estimate, estimate_run
from metropolis.runtime.result import INTERRUPTED
from metropolis.runtime.simulation import LEASE_S, LIVE_MODES, LIVE_RULES, Simulation
from metropolis.sim.virtual import VirtualInstances
from metropolis.store.opening import FORMS
from metropolis.types import MetropolisError, Step
from metropolis.world.scenario import Scenario

FINISHED, STATUS_BUDGET, STATUS_INTERRUPTED = 0, 3, 130
LATEST = "the latest"
REHEARSAL_WALL_S = 120.0
_COUNT = click.IntRange(1, 1_000_000_000)


class Amount(click.FloatRange):
    """A number within a range; unlike click's, never `nan`."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Check."""
        number: float = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value} is not in the range {self._describe_range()}", param, ctx)
        return number


_POSITIVE = Amount(min=0, min_open=True, max=1e9)


@click.command(name="run")
@click.argument("world", required=False)
@click.option("--agents", type=_COUNT, help="How many. [default: the world's own number]")
@click.option("--hours", type=_POSITIVE, help="Length in simulated hours.")
@click.option("--steps", type=_COUNT, help="Length in steps. [default: the world's own]")
@click.option("--mode", type=click.Choice(LIVE_MODES), default="out_of_order", show_default=True)
@click.option(
    "--rule",
    type=click.Choice(LIVE_RULES),
    default="versioned",
    show_default=True,
    help="What out_of_order waits for.",
)
@click.option(
    "--llm",
    metavar="SPEC",
    default="scripted",
    show_default=True,
    help="The model: the URL of a server, sglang:URL, openai:URL, vllm:URL, replay:JOURNAL of a "
    "former run, or the world's own offline author.",
)
@click.option("--model", metavar="NAME", help="Which of the server's models.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="A new folder for the run's files. [default: runs/WORLD-N]",
)
@click.option(
    "--resume",
    metavar="[DIR]",
    is_flag=False,
    flag_value=LATEST,
    help="Go on with the run in DIR, or with the latest under runs/. Longer --hours or --steps, "
    "another --llm, budget or limit may be given with it.",
)
@click.option("--estimate", is_flag=True, help="Say what the run would take, and do not run.")
@click.option("--json", "as_json", is_flag=True, help="End with the summary as a JSON object.")
@click.option("--quiet", is_flag=True, help="Tell no story and show no progress.")
@click.option(
    "--profile",
    default="llama-3-8b/l4",
    show_default=True,
    help="Model and GPU of the simulated instances: a name or a TOML file.",
)
@click.option(
    "--instances",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="How many simulated instances.",
)
@click.option("--concurrency", type=_COUNT, default=1024, show_default=True, help="Calls at once.")
@click.option(
    "--timeout", type=_POSITIVE, default=300, show_default=True, help="Seconds for an answer."
)
@click.option("--requests-per-minute", type=_COUNT, help="As the server's owner allows.")
@click.option("--tokens-per-minute", type=_COUNT, help="As the server's owner allows.")
@click.option("--max-tokens", type=_COUNT, help="Stop before the run has used more, in all.")
@click.option("--max-cost", type=_POSITIVE, help="Stop before the run has cost more, in all.")
@click.option("--price-in", type=Amount(0, 1e9), help="Of a million prompt tokens.")
@click.option("--price-out", type=Amount(0, 1e9), help="Of a million output tokens.")
@click.option(
    "--checkpoint-minutes",
    type=Amount(0, 1e6),
    default=3,
    show_default=True,
    help="How often to write down where everybody is.",
)
@click.option(
    "--store",
    metavar="STORE",
    default="memory",
    show_default=True,
    help=f"Where the run is kept: {FORMS}. Beyond memory nothing has virtual time.",
)
@click.option(
    "--workers",
    metavar="N|ray|ray:N",
    default="1",
    show_default=True,
    help="Of a run in a store: how many in this process, or on Ray; ray: one for every CPU.",
)
@click.option("--ray-address", help="Of a Ray cluster. [default: one of this machine's own]")
@click.option(
    "--lease",
    type=Amount(min=0.1, max=1e6),
    default=LEASE_S,
    show_default=True,
    help="Of a run in a store: after so many seconds of silence somebody counts as dead.",
)
@click.option("--keep-text", is_flag=True, help="Keep prompts and answers in the trace.")
def command(
    world: str | None,
    resume: str | None,
    out: Path | None,
    estimate: bool,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> int:
    """Run WORLD live: an installed world, or FILE.py with a function make.

    Without --llm everything is offline: the world's own author writes, and the latency of its
    answers is that of simulated instances. A run survives Ctrl-C and kill -9; `--resume` goes on
    with a history equal to the uninterrupted one. Exit status: 0 finished, 2 bad input or a model
    that fails, 3 stopped by the budget, 130 interrupted.
    """
    if resume is not None and (out is not None or estimate):
        raise click.UsageError("--resume goes on in the run's folder; leave out --out, --estimate")
    if resume is not None:
        out = latest_folder(world) if resume == LATEST else Path(resume)
        options = options_of(out, _changed(world, given))
    elif world is not None:
        options = RunOptions(whole_name(world), **given)
    else:
        raise click.UsageError("say which world to run, smallville for instance")
    scenario = options.scenario()
    steps = options.last_step(scenario)
    if estimate:
        found = _rehearse(scenario, steps, options, quiet=quiet)
        (write_json if as_json else print_estimate)(found)
        return FINISHED
    backend = options.backend(scenario)
    if not isinstance(backend, VirtualInstances):
        asyncio.run(_check(options.backend(scenario)))  # before there is a folder
    folder = out or new_folder(options.world)
    simulation = Simulation(
        scenario.world,
        scenario.agents,
        options.client(backend),
        mode=options.mode,
        rule=options.rule,
        seed=options.seed,
        out=folder,
        resume=resume is not None,
        checkpoint_wall_s=options.checkpoint_minutes * 60,
        store=options.store,
        workers=options.workers,
        ray_address=options.ray_address,
        lease_s=options.lease,
        keep_text=options.keep_text,
        about=asdict(options) | {"agents": len(scenario.agents)},
    )
    try:
        _live(simulation, scenario, steps, story_to_stderr=as_json, quiet=quiet)
    except MetropolisError as error:
        if steps < simulation.first_step:
            raise
        stands = _stands(simulation.result().steps, steps, folder)
        raise MetropolisError(f"{error}; {stands}") from error
    summary = summary_of(simulation.result(), scenario, steps, options, folder)
    (write_json if as_json else print_summary)(summary)
    if simulation.stopped is None:
        return FINISHED
    stands = _stands(summary.steps, steps, folder)
    click.echo(f"metropolis: {simulation.stopped}; {stands}", err=True)
    return STATUS_INTERRUPTED if simulation.stopped == INTERRUPTED else STATUS_BUDGET


def _rehearse(scenario: Scenario, steps: Step, options: RunOptions, *, quiet: bool) -> Estimate:
    """An estimate from as much of a rehearsal as REHEARSAL_WALL_S and the user's patience allow."""
    began, stop = time.monotonic(), Event()
    with (
        progress_bar(steps, "steps", quiet=quiet) as (advance, describe),
        _ended_by_ctrl_c(stop.set),
    ):
        describe("rehearsing; Ctrl-C: enough")
        return estimate_run(
            scenario,
            steps,
            options.seed,
            options.profile,
            options.instances,
            options.prices,
            advance,
            lambda: stop.is_set() or time.monotonic() - began > REHEARSAL_WALL_S,
        )


def _changed(world: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """The options that stand on the command line."""
    context = click.get_current_context()
    changed = {
        name: value
        for name, value in given.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    return changed if world is None else changed | {"world": whole_name(world)}


async def _check(backend: Backend) -> None:
    try:
        await backend.check()
    finally:
        await backend.close()


def _live(
    simulation: Simulation,
    scenario: Scenario,
    steps: Step,
    *,
    story_to_stderr: bool,
    quiet: bool,
) -> None:
    agents = len(scenario.agents)
    left = max(0, steps - simulation.first_step)
    with (
        progress_bar(left * agents, "agent-steps", quiet=quiet) as (advance, _),
        _ended_by_ctrl_c(simulation.interrupt),
    ):
        for record in simulation.steps(steps):
            advance(agents)
            for sentence in () if quiet else scenario.story(record):
                click.echo(story_line(scenario.world, record.step, sentence), err=story_to_stderr)


@contextmanager
def _ended_by_ctrl_c(finish: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C calls `finish`, a second one ends everything at once."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        finish()

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _stands(step: Step, steps: Step, folder: Path) -> str:
    return f"the run is at step {step} of {steps}; go on with: metropolis run --resume {folder}"
