"""`metropolis trace`: import, generate, tile and describe traces."""

from __future__ import annotations

import click


@click.group(name="trace")
def command() -> None:
    """Import, generate, tile and describe traces."""
