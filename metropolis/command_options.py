"""Types of options, options that several commands share, and what is on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from metropolis.names import did_you_mean
from metropolis.sim.fleet import SimulatedFleet

Command = TypeVar("Command", bound=Callable[..., Any])


class NamedChoice(click.Choice[str]):
    """A choice among names."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return click's message, with the nearest name as a suggestion."""
        message = super().get_invalid_choice_message(value, ctx).removesuffix(".")
        return message + did_you_mean(str(value), self.choices)


class Integer(click.IntRange):
    """An integer within a range; errors call it `integer`."""

    name = "integer"


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


class OutputFolder(click.Path):
    """The path of a folder to write. Click's own type takes an empty one as the current folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert and check the path."""
        if value == "":
            self.fail("it is empty; it should be the path of a folder", param, ctx)
        if Path(value).is_file():
            self.fail(f"{value} is a file; it should be the path of a folder", param, ctx)
        return super().convert(value, param, ctx)


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds all `options` to a command, in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def on_command_line(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `given` that are set on the command line."""
    context = click.get_current_context()
    return {
        name: value
        for name, value in given.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


INSTANCE = click.option(
    "--instance",
    metavar="[NAME=]PROFILE[:COUNT]",
    multiple=True,
    help="Instead of --instances and --profile: one instance, or COUNT instances, of this profile. "
    "They host the model NAME; without a NAME they serve every model. Repeat the option for a "
    "fleet of different instances.",
)

MODEL = click.option(
    "--model",
    metavar="[FUNCTION=]NAME",
    multiple=True,
    help="The model of all calls (NAME), of the calls of a function (FUNCTION=NAME), or of the "
    "calls of an agent (@AGENT=NAME). May be repeated, or written FUNCTION=NAME,FUNCTION=NAME. "
    "An agent's model takes precedence over that of a function.",
)

WORLD_OPTION = click.option(
    "--world-option",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of the world, such as preset=code-1.0 of smallville. May be repeated.",
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
    for name in on_command_line({"instances": instances, "profile": profile}):
        raise click.UsageError(f"--instance lists the whole fleet; omit --{name}")
    return SimulatedFleet.parse(instance)
