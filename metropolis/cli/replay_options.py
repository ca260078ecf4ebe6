"""Types of the options of `metropolis replay`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from metropolis.names import count_in, cut, did_you_mean
from metropolis.runtime.replays.modes import AUTO_RISK, Risk
from metropolis.trace.validate import LIMIT


class CommaSeparated(click.ParamType[list[Any]]):
    """A list like `1,8`, each item checked against `choices` or converted by `convert_item`."""

    name = "list"

    def __init__(
        self,
        choices: Sequence[str] = (),
        *,
        most: int | None = None,
        also: Mapping[str, str] | None = None,
    ) -> None:
        """`also` maps further names to choices; with `most` items are numbers from 1 to it.

        Of two names of one choice the last is kept.
        """
        self.choices, self.also, self.most = choices, also or {}, most

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[Any]:
        """Split and check."""
        if isinstance(value, list):
            return value
        items = [item.strip() for item in str(value).split(",") if item.strip()]
        if not items:
            self.fail("is empty; give at least one item", param, ctx)
        for item in items:
            if self.choices and item not in (*self.choices, *self.also):
                meant = did_you_mean(item, [*self.choices, *self.also])
                names = ", ".join([*self.choices, *self.also])
                self.fail(f"{item!r} is not one of {names}{meant}", param, ctx)
            if self.most and count_in(item, self.most) is None:
                self.fail(f"{cut(item)} is not a whole number from 1 to {self.most}", param, ctx)
        unique = [*{self.also.get(item, item): item for item in items}.values()]
        return [int(item) for item in unique] if self.most else unique


def distance(
    _context: click.Context, _parameter: click.Parameter, value: float | None
) -> float | None:
    """The callback of an option for a distance of a trace."""
    if value is not None and not 0 <= value <= LIMIT:  # refuses nan, too
        raise click.BadParameter(f"{value} is not a number from 0 to {LIMIT:g}")
    return value


class Speculation(click.ParamType[Risk | None]):
    """`off` (None), `auto` or a number from 0 to 1."""

    name = "risk"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Risk | None:
        """Parse and check the range."""
        if value in ("off", "auto"):
            return None if value == "off" else AUTO_RISK
        try:
            risk = float(value)
        except ValueError:
            risk = -1.0
        if not 0 <= risk <= 1:  # refuses nan, too
            self.fail(f"{value!r} is not off, auto or a number from 0 to 1", param, ctx)
        return Risk(risk)
