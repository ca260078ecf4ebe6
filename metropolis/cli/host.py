"""The address at which a server listens."""

from __future__ import annotations

import click


class _Host(click.ParamType[str]):
    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse an empty value, such as that of a shell variable: it means all addresses."""
        if not value.strip():
            self.fail("is empty; write an address, such as 127.0.0.1", param, ctx)
        return value


host_option = click.option(
    "--host", type=_Host(), default="127.0.0.1", show_default=True, help="Address to listen on."
)
