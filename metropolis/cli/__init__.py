"""The command line: `metropolis --help`. Each command lives beside what it configures."""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules

import click

import metropolis.bench
from metropolis.types import MetropolisError


@click.group()
@click.version_option(package_name="metropolis")
def cli() -> None:
    """Run societies of LLM agents out of order."""


@cli.group()
def bench() -> None:
    """Measure, and print ours beside what others report."""


def _register() -> None:
    for part in ("trace", "replay"):
        cli.add_command(import_module(f"metropolis.cli.{part}").command)
    for module in iter_modules(metropolis.bench.__path__):
        loaded = import_module(f"metropolis.bench.{module.name}")
        if hasattr(loaded, "command"):
            bench.add_command(loaded.command)


def main() -> None:
    """Entry point; says what was wrong with the input in one sentence and exits with 2."""
    _register()
    try:
        cli()
    except MetropolisError as error:
        click.echo(f"metropolis: {error}", err=True)
        sys.exit(2)
