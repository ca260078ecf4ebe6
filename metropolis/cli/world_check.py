"""`metropolis world check NAME`."""

from __future__ import annotations

import click

from metropolis.runtime.check_world import findings


@click.command("check")
@click.argument("name")
@click.option("--agents", type=click.IntRange(1), help="How many; as many as usual if not given.")
@click.option("--seeds", type=click.IntRange(1), default=2, show_default=True, help="How many.")
@click.option("--steps", type=click.IntRange(2), default=30, show_default=True, help="Of each run.")
@click.option(
    "--schedules", type=click.IntRange(1), default=3, show_default=True, help="Of each rule."
)
def check_command(name: str, agents: int | None, seeds: int, steps: int, schedules: int) -> None:
    """Hunt for what would make the history of the world NAME depend on how it is run.

    Exits with 1 when something was found.
    """
    found = findings(name, agents, seeds=range(seeds), steps=steps, schedules=schedules)
    for finding in found:
        click.echo(f"{finding.kind}: {finding.sentence}")
    if found:
        raise SystemExit(1)
    click.echo(
        f"nothing found in {steps} steps for {seeds} seeds: lockstep thrice, {schedules} random "
        "schedules under each rule, and once saved and resumed"
    )
