"""`World.resolve` may be a plain function that returns a task which it has started."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

import pytest

from metropolis.world.transaction import Transaction
from tests.runtime.test_simulation import WAYS, run
from tests.runtime.walkers import Meadow, Walker, choose


class Starting(Meadow):
    def resolve(self, cluster: Transaction) -> Awaitable[None]:
        return asyncio.ensure_future(super().resolve(cluster))


@dataclass
class Routine(Walker):
    """Only its answers need a model."""

    def routine(self, observation: Any) -> Any:
        return choose(self, observation)


@pytest.mark.parametrize("agent", [Walker, Routine])
def test_histories_equal_lockstep(agent: type[Walker]) -> None:
    results = [
        run(Starting(6, side=5, joint=2), 10, **({"agent": agent, "seed": 3} | way))
        for way in WAYS
        if "agent" not in way
    ]
    assert results[0].calls > 10
    assert len({result.history_sha256 for result in results}) == 1
