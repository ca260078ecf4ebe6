"""A paused run sends no call; it goes on as if it had not been paused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, Request
from metropolis.llm.client import Client
from metropolis.runtime.live.result import INTERRUPTED, RunResult
from metropolis.runtime.live.run_control import RunControl, RunProgress
from metropolis.runtime.live.simulation import Simulation
from metropolis.world.scenario import make_scenario
from tests.viewer.data.conftest import AGENTS, STEPS, simulation

WAIT_S = 10.0


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


class Controlled:
    """Runs a simulation in a thread."""

    def __init__(self, run: Simulation) -> None:
        self.run = run
        self.results: list[RunResult] = []
        self.thread = threading.Thread(
            target=lambda: self.results.append(run.run(STEPS)), daemon=True
        )

    def result(self) -> RunResult:
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()
        return self.results[0]


def settled(control: RunControl) -> RunProgress:
    """The progress once nothing happens any more."""
    seen: list[RunProgress | None] = []

    def is_settled() -> bool:
        time.sleep(0.1)
        seen.append(control.progress())
        return seen[-1] is not None and seen[-3:] == 3 * [seen[-1]]

    wait_until(is_settled)
    assert seen[-1] is not None
    return seen[-1]


def test_a_pause_changes_no_simulated_time(tmp_path: Path) -> None:
    expected = simulation(tmp_path / "a").run(STEPS)
    controlled = Controlled(simulation(tmp_path / "b"))
    control = controlled.run.control
    assert control.progress() is None
    control.pause()  # before it begins
    controlled.thread.start()
    wait_until(lambda: control.progress() is not None)
    paused = settled(control)
    assert paused.paused
    assert paused.floor < STEPS == paused.target
    time.sleep(0.1)
    assert control.progress() == paused
    control.resume()
    found = controlled.result()
    assert (found.history_sha256, found.makespan_s) == (
        expected.history_sha256,
        expected.makespan_s,
    )
    after = control.progress()
    assert after is not None
    assert (after.floor, after.in_flight, after.calls) == (STEPS, 0, expected.calls)
    control.pause()  # the run has ended: nothing happens


class Watched(Scripted):
    """Counts calls, and takes a moment for each."""

    calls = 0

    async def complete(self, request: Request) -> Completion:
        self.calls += 1
        return await super().complete(request)


def test_a_paused_run_sends_no_call_in_real_time(tmp_path: Path) -> None:
    scenario = make_scenario("minimal", agents=AGENTS, seed=1)
    backend = Watched(scenario.world.author)
    run = Simulation(scenario.world, scenario.agents, Client(backend), out=tmp_path)
    controlled = Controlled(run)
    run.control.pause()
    controlled.thread.start()
    wait_until(lambda: bool(run.client.gate._queue))
    time.sleep(0.1)
    assert backend.calls == 0
    run.control.resume()
    found = controlled.result()
    assert found.calls == backend.calls > 0
    assert found.stopped is None


@pytest.mark.parametrize("simulated", [False, True])
def test_a_paused_run_can_be_stopped(tmp_path: Path, simulated: bool) -> None:
    controlled = Controlled(simulation(tmp_path, simulated=simulated))
    control = controlled.run.control
    control.pause()
    controlled.thread.start()
    wait_until(lambda: control.progress() is not None)
    time.sleep(0.05)
    controlled.run.interrupt()
    found = controlled.result()
    assert found.stopped == INTERRUPTED
    assert found.steps < STEPS
