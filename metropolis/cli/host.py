"""The address at which a server listens."""

from __future__ import annotations

import click

from metropolis.types import MetropolisError


class _Host(click.ParamType[str]):
    name = "text"

    def convert(
        self,
        value: str,
        param: click.Parameter | None,  # noqa: ARG002 -- the interface of click
        ctx: click.Context | None,  # noqa: ARG002
    ) -> str:
        """Refuse an empty value, such as that of a shell variable: it means all addresses."""
        if not value.strip():
            raise MetropolisError("--host is empty; write an address, such as 127.0.0.1")
        return value


host_option = click.option(
    "--host", type=_Host(), default="127.0.0.1", show_default=True, help="Address to listen on."
)
