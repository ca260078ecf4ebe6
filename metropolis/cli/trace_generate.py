"""`metropolis trace generate` and `metropolis trace tile`."""

from __future__ import annotations

import math
from pathlib import Path

import click

from metropolis.command_options import MODEL, Number
from metropolis.llm.model_choice import ModelChoice
from metropolis.names import counted
from metropolis.progress import progress_bar
from metropolis.trace.generate.calls import generate_calls
from metropolis.trace.generate.largeville import generate, tile
from metropolis.trace.parquet import check_target, read_trace, write_trace
from metropolis.trace.schema import Trace
from metropolis.trace.validate import LIMIT
from metropolis.types import MetropolisError

_AGENTS_MAX = 1_000_000
_HOURS_MAX = 240


def _hours(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> tuple[float, float] | None:
    """Parse a range like `11-13`, in hours from the midnight before step 0."""
    if value is None:
        return None
    first, _, last = value.partition("-")
    try:
        hours = float(first), float(last)
    except ValueError:
        hours = math.nan, math.nan
    if not all(0 <= hour <= _HOURS_MAX for hour in hours):
        raise click.BadParameter(
            f"{value!r} is not a range of hours like 11-13, within 0-{_HOURS_MAX}"
        )
    if hours[0] >= hours[1]:
        raise click.BadParameter(f"{value!r} ends before it begins; it should be like 11-13")
    return hours


_OUT = click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="The trace to write."
)
_SEED = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True,
    help="Equal seeds make equal traces.",
)  # fmt: skip


@click.command(name="generate")
@click.option(
    "--movement", type=click.Path(path_type=Path), metavar="TRACE",
    help="Generate calls for the movement of this trace instead of generating movement.",
)  # fmt: skip
@click.option(
    "--agents", type=click.IntRange(1, _AGENTS_MAX), help="Number of agents.  [default: 25]"
)
@click.option(
    "--hours",
    callback=_hours,
    metavar="FROM-TO",
    help="Hours of the day to generate. A whole day of the same seed has other calls in these "
    "hours; to cut a trace, use `metropolis replay --hours`.  [default: 0-24]",
)
@click.option("--radius", type=Number(0, LIMIT, min_open=True), help="Perception radius in tiles.")
@MODEL
@_SEED
@_OUT
def generate_command(
    movement: Path | None,
    agents: int | None,
    hours: tuple[float, float] | None,
    radius: float | None,
    model: tuple[str, ...],
    seed: int,
    out: Path,
) -> None:
    """Generate days of a society: movement in the built-in town, and the agents' LLM calls."""
    models = ModelChoice.parse(model)
    check_target(out, *([] if movement is None else [movement]))
    if movement is not None:
        if (agents, hours, radius) != (None, None, None):
            raise click.UsageError("--agents, --hours and --radius do not go with --movement")
        trace = generate_calls(read_trace(movement), seed)
    else:
        agents = agents or 25
        with progress_bar(agents, "agents") as (advance, _):
            trace = generate(agents, hours or (0.0, 24.0), seed, radius, advance)
    _write(models.applied_to(trace), out)


@click.command(name="tile")
@click.argument(
    "paths", metavar="TRACE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--copies", type=click.IntRange(1, _AGENTS_MAX), help="Number of towns.")
@click.option(
    "--agents", type=click.IntRange(1, _AGENTS_MAX), help="Number of agents, instead of --copies."
)
@click.option(
    "--shift-s", type=Number(0, 3600 * _HOURS_MAX), default=900.0, show_default=True,
    help="Maximum shift of a town's day in time, earlier or later, in simulated seconds.",
)  # fmt: skip
@click.option(
    "--hours",
    callback=_hours,
    metavar="FROM-TO",
    help="Keep only these hours of the day of every town.",
)
@_SEED
@_OUT
def tile_command(
    paths: tuple[Path, ...],
    copies: int | None,
    agents: int | None,
    shift_s: float,
    hours: tuple[float, float] | None,
    seed: int,
    out: Path,
) -> None:
    """Put towns side by side, each with its own day; several TRACEs are used in turn.

    In every town, new calls replace generated ones. Recorded calls are copied.
    """
    if (copies is None) == (agents is None):
        raise click.UsageError("give either --copies or --agents")
    check_target(out, *paths)
    traces = [read_trace(path) for path in paths]
    if copies is not None:
        agents = sum(traces[k % len(traces)].agents for k in range(copies))
    assert agents is not None
    if agents > _AGENTS_MAX:
        raise MetropolisError(f"--copies makes {agents} agents; it should be at most {_AGENTS_MAX}")
    with progress_bar(agents, "agents") as (advance, _):
        trace = tile(traces, agents, seed, shift_s, hours, advance)
    _write(trace, out)


def _write(trace: Trace, out: Path) -> None:
    write_trace(trace, out)
    meta = trace.meta
    click.echo(
        f"{out}: {counted(trace.agents, 'agent')}, {counted(trace.steps, 'step')}, "
        f"{meta.movement_origin} movement; {counted(len(trace.calls), f'{meta.calls_origin} call')}"
    )
