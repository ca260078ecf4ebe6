"""The address at which a server listens."""

from __future__ import annotations

import click

from metropolis.types import MetropolisError


def _checked(_context: click.Context, _option: click.Parameter, host: str) -> str:
    """Refuse an empty host, such as that of a shell variable: it means all addresses."""
    if not host.strip():
        raise MetropolisError("--host is empty; write an address, such as 127.0.0.1")
    return host


host_option = click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    callback=_checked,
    help="Address to listen on.",
)
