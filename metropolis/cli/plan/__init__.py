"""`metropolis plan`: applications of several models on the GPUs of one machine."""

from __future__ import annotations

import click

from metropolis.cli.plan.run import command as run


@click.group("plan")
def command() -> None:
    """Plan which models run when, and on how many GPUs; run applications by the plan."""


command.add_command(run)
