"""Live runs: whatever the mode, the history equals lockstep's."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.llm.backends.scripted import Scripted
from metropolis.rules.metrics import CHEBYSHEV, EUCLIDEAN, MANHATTAN
from metropolis.runtime.simulation import RunResult, Simulation
from metropolis.sim.profiles import load_profile
from metropolis.sim.virtual import VirtualInstances
from tests.runtime.walkers import Meadow, PlainWalker, Walker, author

PROFILE = load_profile("llama-3-8b/l4")


def run(
    world: Meadow, steps: int, *, agent: Any = Walker, instances: int = 2, **how: Any
) -> RunResult:
    llm = VirtualInstances(Scripted(author), PROFILE, instances)
    agents = [agent(name) for name in world.names]
    return Simulation(world, agents, llm, **how).run(steps)


@settings(max_examples=25, deadline=None)
@given(
    walkers=st.integers(1, 9),
    side=st.integers(4, 30),
    radius=st.integers(0, 4),
    velocity=st.integers(0, 2),
    metric=st.sampled_from([CHEBYSHEV, EUCLIDEAN, MANHATTAN]),
    seed=st.integers(0, 1 << 30),
    joint=st.integers(0, 4),
    instances=st.integers(1, 3),
)
def test_every_mode_equals_lockstep(
    walkers: int, side: int, radius: int, velocity: int, metric: Any, seed: int, joint: int,
    instances: int,
) -> None:  # fmt: skip
    def world() -> Meadow:
        near = min(joint, max(radius, 2 * velocity))
        return Meadow(
            walkers, side=side, radius=radius, velocity=velocity, metric=metric, joint=near
        )

    ways = [
        {"mode": "lockstep"},
        {"mode": "sequential"},
        {"rule": "versioned"},
        {"rule": "conservative"},
        {"rule": "versioned", "agent": PlainWalker},
    ]
    results = [run(world(), 12, seed=seed, instances=instances, **way) for way in ways]
    for way, result in zip(ways, results, strict=True):
        assert result.steps == 12
        assert result.history == results[0].history, way
        assert result.history_sha256 == results[0].history_sha256
        assert result.calls == results[0].calls
        assert (result.trace.positions == results[0].trace.positions).all()
