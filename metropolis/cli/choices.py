"""Option choices whose errors suggest the nearest name."""

from __future__ import annotations

from typing import Any

import click

from metropolis.names import did_you_mean


class NamedChoice(click.Choice[str]):
    """A choice among names."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return click's message, with the nearest name as a suggestion."""
        message = super().get_invalid_choice_message(value, ctx).removesuffix(".")
        return message + did_you_mean(str(value), self.choices)
