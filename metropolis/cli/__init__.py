"""The command line: `metropolis --help`. Each command lives beside what it configures."""

from __future__ import annotations

import sys
from importlib import import_module
from io import TextIOWrapper
from pkgutil import iter_modules
from typing import NoReturn

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
    {
        part: f"metropolis.cli.{part}"
        for part in (
            "diff",
            "fork",
            "gateway",
            "replay",
            "resume",
            "run",
            "serve",
            "store",
            "trace",
            "world",
        )
    },
    "Run societies of LLM agents out of order.",
)
cli.add_command(bench)
cli = click.version_option(package_name="metropolis")(cli)


def main() -> None:
    """Entry point; says what was wrong with the input in one sentence and exits with 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no µ still shows the rest
    try:
        status = cli.main(standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted", 130)
    except click.exceptions.NoArgsIsHelpError as asked:
        click.echo(asked.format_message())
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except MetropolisError as error:
        _fail(str(error), 2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has seen enough; nothing is left to say
        sys.exit(1)
    except OSError as error:
        _fail(str(error), 1)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(sentence: str, status: int) -> NoReturn:
    click.echo(f"metropolis: {sentence}", err=True)
    sys.exit(status)
