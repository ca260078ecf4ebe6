"""The command line interface, `metropolis --help`. Each command has a module of its own."""

from __future__ import annotations

import sys
from importlib import import_module
from io import TextIOWrapper
from pkgutil import iter_modules
from traceback import print_exception
from typing import NoReturn

import click

import metropolis.bench
from metropolis.cli.terminal import discard_output, without_controls
from metropolis.names import did_you_mean
from metropolis.types import MetropolisError
from metropolis.world.user_errors import explanation_of


def _set_debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.obj["debug"] = True


DEBUG = click.Option(
    ["--debug"],
    is_flag=True,
    expose_value=False,
    callback=_set_debug,
    help="Also print the traceback of an error.",
)


class LazyGroup(click.Group):
    """Commands imported on first use: name -> module with a `command`.

    A command added under the same name stands for it in lists, which then do not import it.
    """

    def __init__(self, name: str, modules: dict[str, str], summary: str) -> None:
        super().__init__(name, help=summary)
        self.modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted({*self.modules, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return what lists of commands show of `name`; None for an unknown name."""
        listed = super().get_command(ctx, name)
        return self.imported(name) if listed is None and name in self.modules else listed

    def imported(self, name: str) -> click.Command:
        """Import the command `name`, one of `modules`."""
        command: click.Command = import_module(self.modules[name]).command
        if all(known.name != DEBUG.name for known in command.params):
            command.params.append(DEBUG)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the first of `args`; the error for an unknown command suggests the nearest."""
        name = args[0]
        if name in self.modules:
            return name, self.imported(name), args[1:]
        known = self.list_commands(ctx)
        if not (name.startswith("-") or name in known or ctx.resilient_parsing):
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
        if not module.name.startswith("_")
    },
    "Run benchmarks and print the results beside published figures.",
)
_LINES = {
    "ask": "Ask an agent of RUN a QUESTION, as the agent is when STEP begins.",
    "diff": "Compare the histories of RUN and OTHER: where they diverge, which agents differ, "
    "and how.",
    "export": "Write what happened in a run for other programs.",
    "fork": "Start a branch of RUN at STEP, and run it to its end.",
    "gateway": "Serve OpenAI's routes in front of the engines until SIGTERM or Ctrl-C.",
    "plan": "Plan which models run when, and on how many GPUs; run applications by the plan.",
    "replay": "Replay TRACE, a file or a run's folder, on simulated LLM instances and compare "
    "modes.",
    "resume": "Continue RUN: a run's folder, or its name under runs/.",
    "reuse": "Make and show plans of cache reuse between models.",
    "run": "Run WORLD live: an installed world, or FILE.py with a function make.",
    "serve": "Start an LLM server and keep it running until Ctrl-C.",
    "show": "Show the body and the mind of an agent of RUN as they are when STEP begins.",
    "store": "List, inspect and remove the runs in a store.",
    "trace": "Import, generate, tile and describe traces.",
    "view": "Show RUN in a local page: a run's folder or its name under runs/, or a recorded "
    "replay.",
    "whisper": "Start a branch of RUN at STEP in which an agent has the thought TEXT; run it to "
    "its end.",
    "world": "Check worlds, and import towns.",
}
"""Name -> the first sentence of its help, which a test compares."""
cli = LazyGroup(
    "metropolis",
    {name: f"metropolis.cli.{name}" for name in _LINES},
    "Run societies of LLM agents out of order.",
)
for listed in (bench, *(click.Command(name, help=line) for name, line in _LINES.items())):
    cli.add_command(listed)
cli = click.version_option(package_name="metropolis")(cli)


def main() -> None:
    """Entry point. Reports bad input in one sentence and exits with status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals whose encoding lacks µ
    settings = {"debug": False}
    try:
        status = cli.main(standalone_mode=False, obj=settings)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted", 130)
    except click.exceptions.NoArgsIsHelpError as help_request:
        click.echo(help_request.format_message())
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except BrokenPipeError:
        discard_output()
        sys.exit(1)
    except Exception as error:
        sentence, status = _message_and_status(error)
        if sentence is None:
            raise
        if settings["debug"]:
            print_exception(error)
        _fail(sentence, status)
    sys.exit(status if isinstance(status, int) else 0)


def _message_and_status(error: Exception) -> tuple[str | None, int]:
    """Return the message for `error` and the exit status; no message for internal errors."""
    if (sentence := explanation_of(error)) is not None or isinstance(error, MetropolisError):
        return sentence or f"{error}", 2
    return (f"{error}", 1) if isinstance(error, OSError) else (None, 1)


def _fail(sentence: str, status: int) -> NoReturn:
    click.echo(f"metropolis: {without_controls(sentence)}", err=True)
    sys.exit(status)
