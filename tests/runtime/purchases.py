"""Counts of a run's purchases, for tests of runs that end early."""

from __future__ import annotations

from collections import Counter
from typing import Any

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, Request, UnavailableError
from metropolis.llm.journal import key_of
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.types import Step
from tests.runtime.walkers import author

LONG_LEASE_S = 30.0
"""No lease runs out, however slow the machine: that would buy answers twice."""


class Counts:
    """Mixin of backends: counts answers, and fails from the `fails_at`-th answer on."""

    def __init__(self, *about: Any, fails_at: int = 1 << 30) -> None:
        super().__init__(*about)
        self.bought: Counter[Any] = Counter()
        self.fails_at = fails_at

    async def complete(self, request: Request) -> Completion:
        if self.bought.total() >= self.fails_at:
            raise UnavailableError("the server is gone")
        completion = await super().complete(request)
        self.bought[key_of(request)] += 1
        return completion


class Counting(Counts, Scripted):
    """The offline author, with counted answers."""

    def __init__(self, fails_at: int = 1 << 30) -> None:
        super().__init__(author, fails_at=fails_at)


def leave(run: Simulation, steps: Step, at: Step) -> None:
    """Run up to `steps`, and leave the run once step `at` is recorded."""
    records = run.steps(steps)
    for record in records:
        if record.step >= at:
            break
    records.close()


def same(result: RunResult, whole: RunResult) -> None:
    """Assert that the results are equal."""
    assert result.steps == whole.steps
    assert result.history_sha256 == whole.history_sha256
    assert result.calls == whole.calls
    assert result.output_tokens == whole.output_tokens
    assert (result.trace.positions == whole.trace.positions).all()
