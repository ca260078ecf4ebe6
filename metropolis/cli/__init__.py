"""The command line: `metropolis --help`. Each command lives beside what it configures."""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules

import click

import metropolis.bench
from metropolis.types import MetropolisError


class LazyGroup(click.Group):
    """Commands that are imported when they are asked for: name -> module with a `command`."""

    def __init__(self, name: str, modules: dict[str, str], summary: str) -> None:
        super().__init__(name, help=summary)
        self.modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, for `--help`."""
        return sorted({*self.modules, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the command `name`; None when there is no such command."""
        if name not in self.modules:
            return super().get_command(ctx, name)
        command: click.Command = import_module(self.modules[name]).command
        return command


bench = LazyGroup(
    "bench",
    {
        module.name.replace("_", "-"): f"metropolis.bench.{module.name}"
        for module in iter_modules(metropolis.bench.__path__)
    },
    "Measure, and print ours beside what others report.",
)
cli = LazyGroup(
    "metropolis",
    {part: f"metropolis.cli.{part}" for part in ("replay", "trace")},
    "Run societies of LLM agents out of order.",
)
cli.add_command(bench)
cli = click.version_option(package_name="metropolis")(cli)


def main() -> None:
    """Entry point; says what was wrong with the input in one sentence and exits with 2."""
    try:
        cli()
    except MetropolisError as error:
        click.echo(f"metropolis: {error}", err=True)
        sys.exit(2)
