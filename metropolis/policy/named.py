"""Plug-ins by name: policies and dispatchers, ours and anybody's, through entry points."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from metropolis.types import MetropolisError

POLICIES = "metropolis.policies"
"""Entry points: name -> a Policy's class, made without arguments."""
DISPATCHERS = "metropolis.dispatchers"
"""Entry points: name -> a Dispatcher's class, made for a Fleet."""


def names_of(group: str) -> list[str]:
    """What is installed."""
    return sorted(point.name for point in entry_points(group=group))


def named(group: str, name: str) -> Any:
    """The class behind `name`; raises MetropolisError when there is none."""
    for point in entry_points(group=group, name=name):
        return point.load()
    kind = group.rpartition(".")[2]
    raise MetropolisError(f"{name!r} is not among the {kind}: {', '.join(names_of(group))}")
