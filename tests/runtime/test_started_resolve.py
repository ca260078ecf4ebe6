"""`World.resolve` may be a plain function that returns a task which it has started."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from metropolis.world.transaction import Transaction
from tests.runtime.recorded_runs import SteadyMeadow, steady
from tests.runtime.recorded_runs import run as recorded
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


class StartingSteady(SteadyMeadow):
    def resolve(self, cluster: Transaction) -> Awaitable[None]:
        return asyncio.ensure_future(super().resolve(cluster))


def dependencies(kind: type[SteadyMeadow]) -> Any:
    world = steady(6)
    world.__class__ = kind
    found = recorded(world, seed=6).trace.dependencies
    assert found is not None
    return found


@pytest.mark.filterwarnings("error")
def test_dependencies_are_those_of_a_coroutine() -> None:
    """The effects of single members are found in such worlds, too."""
    expected, found = dependencies(SteadyMeadow), dependencies(StartingSteady)
    for column, value in vars(expected).items():
        np.testing.assert_array_equal(getattr(found, column), value, err_msg=column)
