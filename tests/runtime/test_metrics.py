"""A run's metrics say what its result says; they are served while it runs, and no longer."""

from __future__ import annotations

import socket
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from metropolis.cli.run import command
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.llm.usage import Prices
from metropolis.runtime.live.configuration import LIVE_MODES
from metropolis.runtime.live.metrics import FUNCTIONS_MAX, OTHER, RunMetrics
from metropolis.runtime.live.simulation import Simulation
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.types import MetropolisError
from tests.runtime.walkers import Meadow, Walker, author

STEPS = 8
Samples = dict[tuple[str, str], float]
"""(name, value of the only label) -> value."""


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def scrape(port: int) -> Samples:
    opener = build_opener(ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name.removeprefix("metropolis_run_"), "".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


def simulation(port: int, mode: str, **fields: object) -> Simulation:
    world = Meadow(5, side=10, joint=1)
    fleet = SimulatedFleet.uniform("llama-3-8b/l4", 2)
    client = Client(VirtualInstances(Scripted(author), fleet), prices=Prices(2.0, 3.0))
    walkers = [Walker(name) for name in world.names]
    return Simulation(
        world, walkers, client, mode=mode, waste_budget=1.0, metrics_port=port, **fields
    )


@pytest.mark.parametrize("mode", LIVE_MODES)
def test_metrics_are_those_of_the_run(port: int, mode: str) -> None:
    run, found = simulation(port, mode), list[Samples]()
    for record in run.steps(STEPS):
        found.append(scrape(port))
        assert found[-1]["floor", ""] >= record.step + 1
        if mode in ("sequential", "lockstep"):
            assert found[-1]["floor", ""] == record.step + 1
    with pytest.raises(URLError):
        scrape(port)
    last, result = found[-1], run.result()
    assert last["target", ""] == STEPS
    assert all(
        one["agents", "running"] + one["agents", "waiting"] == result.agents for one in found
    )
    for before, after in pairwise(found):
        assert all(before[name, ""] <= after[name, ""] for name in ("floor", "front"))
        assert after["floor", ""] <= after["front", ""] <= STEPS
    for function, usage in result.usage.items():
        for name, value in (
            ("calls_total", usage.calls),
            ("prompt_tokens_total", usage.prompt_tokens),
            ("output_tokens_total", usage.output_tokens),
            ("lost_tokens_total", usage.lost_tokens),
            ("cost_total", usage.cost),
            ("reused_calls_total", usage.reused),
        ):
            assert last[name, function] == pytest.approx(value)
    counted = {name: total.calls for name, total in result.by_function.items()}
    assert counted == {name: last["call_seconds_count", name] for name in counted}
    recorded = [call for _, calls in run._recording.recorder.parts for call in calls]
    seconds = sum(call.completed - call.sent for _, _, call in recorded)
    assert sum(last["call_seconds_sum", name] for name in counted) == pytest.approx(seconds)
    in_vain = sum(one.calls for one in result.usage.values()) - result.calls
    wasted = last["wasted_calls_total", ""]  # also those that were cancelled before their answer
    assert wasted >= in_vain
    assert (wasted > 0) == (mode == "optimistic")
    assert any(one["front", ""] > one["floor", ""] for one in found) == (
        mode in ("out_of_order", "optimistic")
    )
    assert any(one["agents", "running"] for one in found)


def test_a_run_with_metrics_has_the_same_history_and_takes_as_long(port: int) -> None:
    def result(port: int | None) -> tuple[str, float]:
        ended = simulation(port, "out_of_order").run(STEPS)  # type: ignore[arg-type]
        return ended.history_sha256, ended.makespan_s

    assert result(port) == result(None)


def test_pages_of_other_names_read_nothing(port: int) -> None:
    steps = simulation(port, "lockstep").steps(STEPS)
    next(steps)
    for host, status in (
        (f"127.0.0.1:{port}", 200),
        ("localhost", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
    ):
        connection = HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/metrics", headers={"Host": host})
        answer = connection.getresponse()
        assert (answer.status, b"metropolis_run" in answer.read()) == (status, status == 200)
        connection.close()
    steps.close()


def test_a_used_port_is_refused_before_anything_starts(port: int, tmp_path: Path) -> None:
    sentence = f"127.0.0.1:{port}: Address already in use; choose another port for metrics"
    with socket.socket() as used:
        used.bind(("127.0.0.1", port))
        used.listen()
        with pytest.raises(MetropolisError, match=sentence):
            simulation(port, "lockstep", out=tmp_path / "run")
        options = ["minimal", "--metrics", f"{port}", "--out", f"{tmp_path / 'run'}"]
        assert sentence in f"{CliRunner().invoke(command, options).exception}"
    assert not (tmp_path / "run").exists()
    for bad in ("0", "65536", "-1", "http"):
        failed = CliRunner().invoke(command, ["minimal", "--metrics", bad])
        assert failed.exit_code == 2, bad
    for wrong in (0, 65536, True, "9100"):
        with pytest.raises(
            MetropolisError, match=r"metrics_port is .*; it should be a number from"
        ):
            simulation(wrong, "lockstep")  # type: ignore[arg-type]


def test_the_number_of_labels_is_bounded() -> None:
    metrics = RunMetrics()
    labels = {metrics._label(f"function {number}") for number in range(2 * FUNCTIONS_MAX)}
    assert len(labels) == FUNCTIONS_MAX + 1
    assert OTHER in labels
    assert metrics._label("function 0") == "function 0"
