"""The command line interface, `metropolis --help`. Each command has a module of its own."""

from __future__ import annotations

import sys
from importlib import import_module
from io import TextIOWrapper
from traceback import print_exception
from typing import NoReturn

import click

from metropolis._core import use_huge_pages
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
        use_huge_pages()  # also for what is imported next
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


_BENCH_LINES = {
    "agentix": "Serve agentic programs in virtual time, with Agentix and its baselines.",
    "ai-metropolis": "Reproduce figures 4a and 5 and table 1 of AI Metropolis on TRACE, a town's "
    "day (25 agents).",
    "controller": "Measure the native controller: walkers, lognormal service times, unlimited "
    "servers.",
    "droidspeak": "Measure what models gain by starting from another model's cache.",
    "fidelity": "Simulate a real serving run and print the error of the simulation.",
    "gateway": "Measure the latency that a gateway adds; takes some minutes.",
    "gateway-attack": "Measure the effect of slow senders and bad requests on honest clients; "
    "takes some minutes.",
    "instances": "Measure requests simulated per CPU-second, 640 tokens in and 22 out, at several "
    "loads.",
    "kairos": "Serve agentic programs in virtual time, ordered and placed by Kairos and its "
    "baselines.",
    "memory": "Measure the peak memory of a run of one day and of a run of several days, offline.",
    "nodes": "Kill one of two Ray nodes of a large run; compare history and time with lockstep.",
    "optimistic": "Measure the mode optimistic on TRACE, a town's day: busy and quiet hour.",
    "overhead": "Measure CPU time per agent-step and wall time against the ideal; takes four "
    "minutes.",
    "page": "Open RUN in Chromium, and scrub over all of it in every view.",
    "recording": "Measure the CPU time of runs and replays with and without their timeline.",
    "recovery": "Kill parts of runs at random moments and check the results; takes some 8 s per "
    "kill.",
    "samullm": "Compare plans for several models on 8 GPUs, as in SamuLLM's experiments "
    "(simulated).",
    "serving": "Run societies and serve programs with every policy and dispatcher, in virtual "
    "time.",
    "serving-overhead": "Measure the cost of ordering and placing a request while others wait.",
    "store": "Measure the cost of a store, beside the run in memory, asyncio and multiprocessing.",
    "stub-server": "Serve chats with lognormal latency until stopped; prints the URL.",
    "viewer": "Read every chunk of RUN, a run's folder or a recorded replay, as a page would.",
}
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
bench = LazyGroup(
    "bench",
    {name: f"metropolis.bench.{name.replace('-', '_')}" for name in _BENCH_LINES},
    "Run benchmarks and print the results beside published figures.",
)
cli = LazyGroup(
    "metropolis",
    {name: f"metropolis.cli.{name}" for name in _LINES},
    "Run societies of LLM agents out of order.",
)
for group, lines in ((bench, _BENCH_LINES), (cli, _LINES)):
    for name, line in lines.items():
        group.add_command(click.Command(name, help=line))
cli.add_command(bench)
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
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: cannot be used: {error.strerror}", 2
    return (f"{error}", 1) if isinstance(error, OSError) else (None, 1)


def _fail(sentence: str, status: int) -> NoReturn:
    click.echo(f"metropolis: {without_controls(sentence)}", err=True)
    sys.exit(status)
