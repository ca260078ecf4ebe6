"""Benchmarks, and functions that start their processes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from tempfile import TemporaryFile
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from metropolis.sim.fleet import SimulatedFleet
from metropolis.types import MetropolisError

Command = TypeVar("Command", bound=Callable[..., Any])


def python_command(code: str) -> list[str]:
    """Return the command that runs `code` on installed packages, not on this folder's files."""
    return [sys.executable, "-P", "-c", code]


METROPOLIS = python_command("from metropolis.cli import main; main()")
"""The command line interface as a command."""


class Number(click.FloatRange):
    """A number within a range; unlike click's type, it refuses `nan`."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Convert and check the range."""
        number: float = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value} is not in the range {self._describe_range()}", param, ctx)
        return number


INSTANCE = click.option(
    "--instance",
    metavar="[NAME=]PROFILE[:COUNT]",
    multiple=True,
    help="Instead of --instances and --profile: one instance, or COUNT, of this profile. It hosts "
    "the model NAME, or else serves every model. Repeat the option for a fleet of different "
    "instances.",
)

MODEL = click.option(
    "--model",
    metavar="[FUNCTION=]NAME",
    multiple=True,
    help="The model of all calls, of those of FUNCTION, or of those of an agent with @AGENT=NAME. "
    "May be repeated, and FUNCTION=NAME,FUNCTION=NAME is possible; an agent's model takes "
    "precedence over that of a function.",
)


def _seeds(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) < 2**63 for part in parts):
        raise click.BadParameter(
            f"{text!r} should be whole numbers separated by commas, as in 0,1,2"
        )
    return tuple(dict.fromkeys(map(int, parts)))


SEEDS = click.option(
    "--seeds",
    callback=_seeds,
    default="0",
    show_default=True,
    help="Seeds of what is generated, separated by commas: every run is repeated with each.",
)


def loads_of(
    default: Sequence[float], least: float, most: float, kind: str, help: str
) -> Callable[[Command], Command]:
    """Return the option --loads: numbers of this kind from `least` to `most`."""
    shown = ",".join(f"{load:g}" for load in default)

    def parse(_context: click.Context, _option: click.Parameter, text: str) -> tuple[float, ...]:
        try:
            loads = tuple(dict.fromkeys(float(part) for part in text.split(",")))
        except ValueError:
            loads = ()
        if not loads or not all(least <= load <= most for load in loads):
            raise click.BadParameter(
                f"{text!r} should be {kind} from {least:g} to {most:g} separated by commas, as in "
                f"{shown}"
            )
        return loads

    return click.option("--loads", callback=parse, default=shown, show_default=True, help=help)


def some_of(option: str, names: Sequence[str], what: str) -> Callable[[Command], Command]:
    """Return an option that chooses some of `names`; `what` is one of them."""
    return click.option(
        option,
        multiple=True,
        type=click.Choice(names),
        help=f"{what}; may be repeated. [default: all]",
    )


def fleet_of(instance: Sequence[str], profile: str, instances: int) -> SimulatedFleet:
    """Return the fleet that --instance lists, or `instances` of `profile`.

    Raises UsageError if both are on the command line, MetropolisError on an unknown profile.
    """
    if not instance:
        return SimulatedFleet.uniform(profile, instances)
    context = click.get_current_context()
    for name in ("instances", "profile"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--instance lists the whole fleet; omit --{name}")
    return SimulatedFleet.parse(instance)


def need(extra: str, *modules: str) -> None:
    """Raise MetropolisError if one of `modules`, part of `metropolis[extra]`, is missing."""
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            raise MetropolisError(
                f"{error}; this benchmark needs it: pip install 'metropolis[{extra}]'"
            ) from None


@contextmanager
def server(start: list[str]) -> Iterator[str]:
    """Run a server in a process; yield the URL that it prints in its first line.

    Raises MetropolisError with the last line of its errors if it ends before that.
    """
    with TemporaryFile("w+") as errors:
        process = subprocess.Popen(start, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            url = re.search(r"http://[\w.:]+(/#token=[\w-]+)?", process.stdout.readline())
            if url is None:
                status = process.wait()
                errors.seek(0)
                last = errors.read().strip().rpartition("\n")[2].removeprefix("metropolis: ")
                raise MetropolisError(last or f"a server ended with status {status} at its start")
            yield url[0]
        finally:
            process.terminate()
            process.communicate()
