"""`metropolis world check NAME`."""

from __future__ import annotations

import click

from metropolis.command_options import WORLD_OPTION
from metropolis.runtime.checks.check_world import findings
from metropolis.world.scenario_options import parse_options


@click.command("check")
@click.argument("name")
@WORLD_OPTION
@click.option(
    "--agents", type=click.IntRange(1), help="Number of agents. [default: the world's own]"
)
@click.option(
    "--seeds", type=click.IntRange(1), default=2, show_default=True, help="Number of seeds."
)
@click.option(
    "--steps", type=click.IntRange(2), default=30, show_default=True, help="Steps per run."
)
@click.option(
    "--schedules",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Random schedules per rule.",
)
def check_command(
    name: str,
    world_option: tuple[str, ...],
    agents: int | None,
    seeds: int,
    steps: int,
    schedules: int,
) -> None:
    """Search the world NAME for anything that makes its history depend on the schedule.

    Exits with status 1 if a problem is found, and with 2 if an agent or the world raises an error.
    """
    found = findings(
        name,
        agents,
        seeds=range(seeds),
        steps=steps,
        schedules=schedules,
        world_options=parse_options(world_option),
    )
    for finding in found:
        click.echo(f"{finding.kind}: {finding.sentence}")
    if found:
        raise SystemExit(1)
    click.echo(
        f"nothing found in {steps} steps for {seeds} seeds: lockstep four times, once with other "
        f"hashes of texts, {schedules} random schedules under each rule, saved and resumed, "
        "and optimistic"
    )
