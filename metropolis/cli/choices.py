"""Types of options, and what the user has set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from metropolis.names import did_you_mean


class NamedChoice(click.Choice[str]):
    """A choice among names."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return click's message, with the nearest name as a suggestion."""
        message = super().get_invalid_choice_message(value, ctx).removesuffix(".")
        return message + did_you_mean(str(value), self.choices)


class Integer(click.IntRange):
    """An integer within a range; errors call it `integer`."""

    name = "integer"


def on_command_line(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `given` that are set on the command line."""
    context = click.get_current_context()
    return {
        name: value
        for name, value in given.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
