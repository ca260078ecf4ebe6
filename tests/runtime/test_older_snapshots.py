"""A server that comes back with an older snapshot while a run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metropolis.bench.stub_server import stub_server
from metropolis.llm.backends.compatible import Compatible
from metropolis.runtime.live.simulation import Simulation
from metropolis.store.base import StoreError
from tests.runtime.walkers import Meadow, Walker
from tests.store.snapshot_server import SnapshotServer

STEPS = 24
RESTARTED_AT = 12


def simulation(url: str, **how: Any) -> Simulation:
    world = Meadow(6, side=9, joint=1)
    agents = [Walker(name) for name in world.names]
    return Simulation(world, agents, Compatible(url), seed=5, lease_s=1.0, **how)


@pytest.mark.parametrize("how", [{"workers": 1}, {"workers": 3}, {"mode": "optimistic"}])
@pytest.mark.parametrize("saved_at", [9, RESTARTED_AT])
def test_a_resumed_run_has_the_same_history(
    tmp_path: Path, saved_at: int, how: dict[str, Any]
) -> None:
    """The server may come back with everything that matters: then the run goes on."""
    with stub_server(0.005, 1) as model, SnapshotServer() as server:
        expected = simulation(model).run(STEPS)
        run = simulation(model, store=server.url, out=tmp_path / "it", **how)
        failure = ""
        try:
            for record in run.steps(STEPS):
                if record.step == saved_at:
                    server.save()
                if record.step == RESTARTED_AT:
                    server.restart()
            result = run.result()
        except StoreError as error:
            failure = str(error)
            result = simulation(model, out=tmp_path / "it", resume=True, **how).run(STEPS)
        lost = "has lost its newest commits"
        assert lost in failure if saved_at < RESTARTED_AT else lost in failure or not failure
        assert result.history_sha256 == expected.history_sha256


def test_the_last_checkpoint(tmp_path: Path) -> None:
    """It is read from the store after the last step."""
    with stub_server(0.005, 1) as model, SnapshotServer() as server:
        run = simulation(model, store=server.url, out=tmp_path / "it")

        def steps() -> None:
            for record in run.steps(STEPS):
                if record.step == 4:
                    server.save()
                if record.step == STEPS - 1:
                    server.restart()

        with pytest.raises(StoreError, match="has lost its newest commits"):
            steps()
        more = simulation(model, out=tmp_path / "it", resume=True, store="memory").run(STEPS + 6)
        assert more.history_sha256 == simulation(model).run(STEPS + 6).history_sha256
