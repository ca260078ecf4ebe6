"""`metropolis trace`: import, generate, tile and describe traces."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import click
from rich.table import Table

from metropolis.cli.terminal import printable
from metropolis.cli.trace_generate import generate_command, tile_command
from metropolis.command_options import NamedChoice, Number
from metropolis.maps.map import read_genagent_map
from metropolis.names import counted
from metropolis.rules.metrics import METRICS
from metropolis.tables import plain_console, print_whole
from metropolis.trace.importers import import_recording
from metropolis.trace.importers.calls import import_calls
from metropolis.trace.importers.recording import parse_start
from metropolis.trace.parquet import check_target, read_trace, write_trace
from metropolis.trace.shown import activities, conversations
from metropolis.trace.summary import Summary, summarise
from metropolis.trace.validate import LIMIT


@click.group(name="trace")
def command() -> None:
    """Import, generate, tile and describe traces."""


command.add_command(generate_command)
command.add_command(tile_command)


@command.command(name="import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The trace to write.")
@click.option("--calls", type=click.Path(path_type=Path), help="A log of LLM calls: JSONL or CSV.")
@click.option("--radius", type=Number(0, LIMIT), help="Perception radius in tiles.")
@click.option("--velocity", type=Number(0, LIMIT), help="Maximum velocity in tiles per step.")
@click.option(
    "--metric",
    type=NamedChoice([name for name in METRICS if name != "hops"]),  # the importers make no graph
    default="chebyshev",
    show_default=True,
    help="Metric of perception.",
)
@click.option(
    "--step-seconds",
    "step_s",
    type=Number(0, LIMIT, min_open=True),
    help="Simulated seconds in a step.",
)
@click.option("--start", help="Time of step 0: 06:30 or 2023-02-13T06:30:00.")
@click.option(
    "--map", "map_path", type=click.Path(path_type=Path), help="A folder of GenAgent map matrices."
)
@click.option(
    "--jumps",
    type=click.Choice(["error", "clamp"]),
    default="error",
    show_default=True,
    help="Treatment of moves beyond the maximum velocity.",
)
def import_command(
    path: Path,
    out: Path,
    calls: Path | None,
    radius: float | None,
    velocity: float | None,
    metric: str,
    step_s: float | None,
    start: str | None,
    map_path: Path | None,
    jumps: Literal["error", "clamp"],
) -> None:
    """Convert the movement at PATH, and the LLM calls in the log --calls, to a trace.

    PATH is GenAgent's master_movement.json, a simulation folder with environment/ or movement/,
    or JSON with a track of positions per agent; plain or gzipped.
    """
    check_target(out, *(source for source in (path, calls, map_path) if source is not None))
    imported = import_recording(
        path,
        radius=radius,
        velocity=velocity,
        step_s=step_s,
        start=None if start is None else parse_start(start, "--start"),
        metric=metric,
        map=None if map_path is None else read_genagent_map(map_path),
        jumps=jumps,
    )
    trace = imported.trace if calls is None else import_calls(calls, imported.trace)
    write_trace(trace, out)
    is_derived = calls is not None and trace.meta.calls_origin == "derived"
    typical = " (missing lengths are those typical of the functions)" if is_derived else ""
    seen = ""
    if (shown := trace.shown) is not None:
        changes = counted(activities(shown), "change")
        seen = f", {changes} of activity, {counted(conversations(shown), 'conversation')}"
    clamped = counted(imported.clamped, "agent-step")
    click.echo(
        f"{out}: {counted(trace.agents, 'agent')}, {counted(trace.steps, 'step')}, "
        f"{counted(len(trace.calls), 'call')}"
        f"{typical}{seen}" + (f"; jumps clamped: {clamped} changed" if jumps == "clamp" else "")
    )
    if surplus := imported.recording.surplus:
        told = printable(", ".join(surplus))
        click.echo(
            f"warning: ignored {counted(len(surplus), 'agent')} of environment/0.json who took no "
            f"part: {told}",
            err=True,
        )


@command.command()
@click.argument("path", metavar="TRACE", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(path: Path, as_json: bool) -> None:
    """Summarise TRACE."""
    summary = summarise(read_trace(path))
    if as_json:
        click.echo(json.dumps(asdict(summary), indent=2, ensure_ascii=False))
    else:
        _print_summary(summary)


def _print_summary(summary: Summary) -> None:
    console = plain_console()
    facts = Table(title=printable(summary.name) or None, show_header=False)
    source = printable(summary.source) or "no source given"
    for name, value in (
        ("agents x steps", f"{summary.agents} x {summary.steps}"),
        ("time", f"{summary.hours:.2f} h from {summary.start}, {summary.step_s:g} s a step"),
        ("perception radius", f"{summary.perception_radius:g} ({summary.metric})"),
        ("max velocity", f"{summary.max_velocity:g} a step"),
        ("map", printable(summary.map or "none")),
        ("movement", f"{summary.movement_origin}; {source}"),
        (
            "walks",
            f"{summary.walks}, median {summary.walk_steps_median:g} steps;"
            f" {summary.stationary_share:.1%} of agent-steps stationary",
        ),
        (
            "activities",
            "unknown"
            if summary.activities is None
            else f"{counted(summary.activities, 'change')}, "
            f"{counted(summary.conversations or 0, 'conversation')}",
        ),
        (
            "calls",
            f"{summary.calls} {summary.calls_origin}, at a rate of"
            f" {summary.calls_per_agent_day:.0f} per agent and day;"
            f" {summary.active_share:.1%} of agent-steps make any",
        ),
        (
            "calls per active agent-step",
            f"mean {summary.calls_per_active_step_mean:.1f},"
            f" median {summary.calls_per_active_step_median:g},"
            f" most {summary.calls_per_active_step_max}",
        ),
        ("prompts", f"{summary.texts} with text, {summary.prefixes} with a shared prefix"),
        ("dependencies by value", "yes" if summary.has_values else "no"),
    ):
        facts.add_row(name, value)
    print_whole(facts, console)
    if not summary.calls:
        return
    functions = Table("function", title="calls by function")
    for heading in ("calls", "mean prompt tokens", "mean output tokens"):
        functions.add_column(heading, justify="right")
    for own in summary.functions:
        functions.add_row(
            printable(own.function),
            str(own.calls),
            f"{own.prompt_tokens_mean:.1f}",
            f"{own.output_tokens_mean:.1f}",
        )
    functions.add_section()
    functions.add_row(
        "all",
        str(summary.calls),
        f"{summary.prompt_tokens_mean:.1f}",
        f"{summary.output_tokens_mean:.1f}",
    )
    print_whole(functions, console)
    hours = Table("hour", title="calls per hour")
    hours.add_column("calls", justify="right")
    busiest = max(summary.calls_per_hour.values())
    hours.add_column("")
    for hour, count in summary.calls_per_hour.items():
        hours.add_row(f"{hour}-{hour + 1}", str(count), "█" * round(40 * count / busiest))
    print_whole(hours, console)
