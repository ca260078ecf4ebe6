"""`metropolis replay`: a trace through virtual LLM instances, in every mode."""

from __future__ import annotations

import click


@click.command(name="replay")
def command() -> None:
    """Replay a trace."""
