"""Errors of the C++ core, as errors of this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from metropolis.controller.base import InvariantError
from metropolis.types import MetropolisError


@contextmanager
def input_checked() -> Iterator[None]:
    """Raise MetropolisError where the core refuses what it is given."""
    try:
        yield
    except ValueError as error:
        raise MetropolisError(str(error)) from error


@contextmanager
def invariants_checked() -> Iterator[None]:
    """Raise InvariantError where the core finds that its state contradicts its rules."""
    try:
        yield
    except RuntimeError as error:
        raise InvariantError(str(error)) from error
