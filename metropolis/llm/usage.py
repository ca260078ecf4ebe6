"""Usage of calls by function: tokens, cost, retries and time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from math import inf
from typing import NamedTuple

from metropolis.types import MetropolisError


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a million tokens, in any currency."""

    input_per_million: float
    output_per_million: float

    def __post_init__(self) -> None:
        for name in ("input_per_million", "output_per_million"):
            if not 0 <= getattr(self, name) < inf:
                raise MetropolisError(
                    f"{name} is {getattr(self, name)}; it should be a number of at least 0"
                )

    def cost(self, prompt_tokens: float, output_tokens: float) -> float:
        """The cost of one call."""
        return (
            prompt_tokens * self.input_per_million + output_tokens * self.output_per_million
        ) / 1e6


FREE = Prices(0.0, 0.0)


class Tokens(NamedTuple):
    """The tokens of one call, or of several."""

    prompt: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True)
class Purchases:
    """The answers that one buyer, such as a process, received for one function."""

    buyer: str
    function: str
    calls: int
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Usage:
    """The calls of one function, or of all functions.

    `calls` were answered by the backend, `reused` from the journal; `failures` ended in an error
    after `retries` of single attempts. `latency_s` is the time from sending the successful attempt
    to its answer, summed over calls, without waiting for a turn. `lost_tokens` is an upper bound
    on the tokens of attempts without a usable answer; they count in the budget.
    """

    calls: int = 0
    reused: int = 0
    retries: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    lost_tokens: int = 0
    cost: float = 0.0
    latency_s: float = 0.0
    latency_max_s: float = 0.0

    @property
    def mean_latency_s(self) -> float:
        """Seconds per answered call; 0 without calls."""
        return self.latency_s / self.calls if self.calls else 0.0

    def add(self, calls: int, prompt_tokens: int, output_tokens: int, cost: float = 0.0) -> None:
        """Add answered calls."""
        self.calls += calls
        self.prompt_tokens += prompt_tokens
        self.output_tokens += output_tokens
        self.cost += cost

    def add_latency(self, latency_s: float) -> None:
        """Add the time of an answered call."""
        self.latency_s += latency_s
        self.latency_max_s = max(self.latency_max_s, latency_s)


def total(usages: Iterable[Usage]) -> Usage:
    """The sum over all functions."""
    rows = list(usages)
    sums = {field.name: sum(getattr(row, field.name) for row in rows) for field in fields(Usage)}
    sums["latency_max_s"] = max((row.latency_max_s for row in rows), default=0.0)
    return Usage(**sums)
