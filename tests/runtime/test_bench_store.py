"""`metropolis bench store`: every way runs every step, and figures exclude the first steps."""

from __future__ import annotations

import asyncio
import json

import pytest
from click.testing import CliRunner

from metropolis.bench import store
from metropolis.bench._processes import cpu_s
from metropolis.bench.store import trips
from metropolis.bench.store.ways import Load, counted_steps, in_a_store, in_asyncio, measure_steps
from metropolis.store.embedded import EmbeddedServer


@pytest.mark.parametrize("together", [False, True])
def test_every_step_is_run(shared: EmbeddedServer, together: bool) -> None:
    load = Load(4, 10, 0.001, together)
    for steps in (in_asyncio(load), in_a_store(load, "memory", 1), in_a_store(load, shared.url, 1)):
        assert len(list(steps)) == load.steps


def test_the_first_steps_are_not_measured() -> None:
    load = Load(2, 10)
    assert counted_steps(load) == 8
    found = measure_steps(load, in_asyncio(load))
    assert found.wall_s > 0


def test_cpu_time_grows_with_what_is_computed() -> None:
    before = cpu_s()
    sum(range(3_000_000))
    assert cpu_s() >= before


def test_trips_are_measured(shared: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "TRIPS", 20)
    found = asyncio.run(trips(shared, "here", 5))
    assert 0 < found.claim_p50_us <= found.claim_p99_us
    assert 0 < found.commit_p50_us <= found.commit_p99_us
    assert "bench-5" not in shared.runs()


def test_the_command_refuses_what_are_no_numbers() -> None:
    found = CliRunner().invoke(store.command, ["--agents", "few"])
    assert found.exit_code != 0
    assert "--agents is 'few'" in str(found.exception)


def test_the_command(shared: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ways", lambda **_: {"plain asyncio": in_asyncio})
    monkeypatch.setattr(store, "AGENT_STEPS", 20)
    monkeypatch.setattr(store, "LATENCY_S", 0.001)
    monkeypatch.setattr(store, "TRIPS", 20)
    found = CliRunner().invoke(store.command, ["--agents", "3", "--repetitions", "1", "--json"])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert [one["way"] for one in told["speed"]] == ["plain asyncio"]
    assert {one["together"] for one in told["share"]} == {False, True}
    assert {one["store"] for one in told["trips"]} == {"embedded", "redis"}
