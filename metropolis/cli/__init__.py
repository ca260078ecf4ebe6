"""The command line: `metropolis --help`. Each command lives beside what it configures."""

from __future__ import annotations

import sys
from importlib import import_module
from io import TextIOWrapper
from pkgutil import iter_modules
from traceback import print_exception
from typing import NoReturn

import click

import metropolis.bench
from metropolis.cli.terminal import without_controls
from metropolis.names import did_you_mean
from metropolis.types import MetropolisError
from metropolis.world.mistakes import explanation_of


def _set_debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.obj["debug"] = True


DEBUG = click.Option(
    ["--debug"],
    is_flag=True,
    expose_value=False,
    callback=_set_debug,
    help="Print the traceback of an error, too.",
)


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
        if all(known.name != DEBUG.name for known in command.params):
            command.params.append(DEBUG)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with; a name that is none is told with the nearest."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            known = self.list_commands(ctx)
            ctx.fail(
                f"there is no command {name!r}{did_you_mean(name, known)}; there are "
                f"{', '.join(known)}"
            )
        return super().resolve_command(ctx, args)


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
    settings = {"debug": False}
    try:
        status = cli.main(standalone_mode=False, obj=settings)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted", 130)
    except click.exceptions.NoArgsIsHelpError as asked:
        click.echo(asked.format_message())
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has seen enough; nothing is left to say
        sys.exit(1)
    except Exception as error:
        sentence, status = _told(error)
        if sentence is None:
            raise
        if settings["debug"]:
            print_exception(error)
        _fail(sentence, status)
    sys.exit(status if isinstance(status, int) else 0)


def _told(error: Exception) -> tuple[str | None, int]:
    """What to say of `error`, and the exit status; None: it is a fault of ours."""
    if (sentence := explanation_of(error)) is not None or isinstance(error, MetropolisError):
        return sentence or f"{error}", 2
    return (f"{error}", 1) if isinstance(error, OSError) else (None, 1)


def _fail(sentence: str, status: int) -> NoReturn:
    click.echo(f"metropolis: {without_controls(sentence)}", err=True)
    sys.exit(status)
