"""`metropolis bench agentix`: its measurements, and throughput at equal latency."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from metropolis._core import InstancePool
from metropolis.bench import agentix
from metropolis.bench.agentix.measure import Bench, Measured, Throughput, throughput_at
from metropolis.bench.agentix.systems import (
    AGENTIX,
    FINE_AGENTIX,
    FINE_MLFQ,
    SYSTEMS,
    VLLM,
    VLLM_OPT,
)
from metropolis.bench.agentix.tables import max_ratio, over_seeds, pooled, ratios_of
from metropolis.sim.options import PoolOptions
from metropolis.sim.profiles import load_profile
from metropolis.types import MetropolisError

POINT = Measured(0, "BFCL", "vLLM", "least_used", 1, 1.0, 10.0, 20.0, {95: 1.0, 99: 1.0}, 0, 1.0)


def curve(*points: tuple[float, float]) -> list[Measured]:
    return [replace(POINT, programs_per_s=rate, average_ms=ms) for rate, ms in points]


@given(st.floats(1.0, 100.0), st.floats(0.1, 5.0))
def test_throughput_is_interpolated_on_an_exponential_curve(limit_ms: float, k: float) -> None:
    rates = [0.5 * number for number in range(1, 21)]
    found = throughput_at(curve(*((rate, 2.0 ** (k * rate)) for rate in rates)), limit_ms)
    if limit_ms < 2.0 ** (k * rates[0]):
        assert found == Throughput(0.0)
    elif limit_ms > 2.0 ** (k * rates[-1]):
        assert found == Throughput(rates[-1], is_lower_bound=True)
    else:
        assert 2.0 ** (k * found.per_s) == pytest.approx(limit_ms)


def test_ratios_mark_bounds_and_unknown_values() -> None:
    ours = [Throughput(3.0), Throughput(4.0, is_lower_bound=True), Throughput(4.0), Throughput(4.0)]
    theirs = [
        Throughput(2.0),
        Throughput(2.0),
        Throughput(4.0, is_lower_bound=True),
        Throughput(0.0),
    ]
    assert ratios_of(ours, theirs) == "1.5 and >2.0 and - and -"


def test_the_maximum_covers_every_latency_measured_for_both() -> None:
    ours, theirs = curve((1, 10), (2, 20), (8, 40)), curve((1, 10), (2, 30), (3, 60), (4, 80))
    most = max_ratio(ours, theirs)
    assert most == Throughput(8 / throughput_at(theirs, 40.0).per_s, is_lower_bound=False)
    bound = max_ratio(ours, curve((1, 50), (2, 60)))
    assert bound == Throughput(8.0, is_lower_bound=True)
    assert max_ratio(ours, curve((1, 20), (2, 10))) is None  # noise: less load took longer
    assert over_seeds([Throughput(1.5), bound]) == "1.50 | >8.00 (mean >4.75)"
    assert over_seeds([Throughput(1.5), None]) == "1.50 | -"
    assert [one.average_ms for one in pooled([POINT])] == [POINT.pooled_ms]


def test_an_instance_is_busy_at_its_busy_rate() -> None:
    """Well below the rate waits are short; well above it latency is a multiple."""
    bench = Bench("llama-3-8b/a100", sequences=32, programs=400, seed=1, preemption="swap_all")
    per_s = bench.busy_per_s("BFCL", VLLM_OPT)
    assert per_s > 2 * bench.busy_per_s("BFCL", VLLM)
    low, high = (bench.run("BFCL", VLLM_OPT, load * per_s) for load in (0.5, 2.0))
    assert high.average_ms > 2 * low.average_ms
    assert bench.run("BFCL", AGENTIX, 2.0 * per_s).average_ms < high.average_ms


def test_whole_prompts_and_empty_places_take_time() -> None:
    """Beside the cache, what sets vLLM apart; and what Agentix fills (section 4.2.2)."""
    bench = Bench("llama-3-8b/a100", sequences=32, programs=400, seed=1, preemption="swap")
    for system, pool, load, factor in (
        (VLLM, PoolOptions(), 0.8, 0.9),
        (replace(FINE_AGENTIX, pool=VLLM_OPT.pool), FINE_AGENTIX.pool, 2.0, 0.99),
    ):
        per_s = load * bench.busy_per_s("BFCL", system)
        slow, fast = (
            bench.run("BFCL", one, per_s).average_ms for one in (system, replace(system, pool=pool))
        )
        assert fast < factor * slow


def test_copies_at_every_preemption_take_time() -> None:
    bench = Bench("llama-3-8b/a100", sequences=8, programs=50, seed=0, preemption="swap_all")
    per_s = 2 * bench.busy_per_s("LATS", FINE_MLFQ)
    fewer_copies = replace(bench, preemption="swap").run("LATS", FINE_MLFQ, per_s)
    assert bench.run("LATS", FINE_MLFQ, per_s).average_ms > 1.2 * fewer_copies.average_ms


@pytest.mark.parametrize(
    ("sequences", "sampling_ms", "decision_ms"),
    [(8, 0.888, 0.458), (32, 1.126, 1.251), (64, 1.370, 2.115)],  # vidur's medians for vLLM
)
def test_an_iteration_takes_the_cpu_time_that_was_measured(
    sequences: int, sampling_ms: float, decision_ms: float
) -> None:
    profile = VLLM.instance("llama-3-8b/a100", 64).profile
    plain, own = (
        1000 * InstancePool.iteration_sim_s(each, sequences, 1000)
        for each in (load_profile("llama-3-8b/a100"), profile)
    )
    assert own - plain == pytest.approx(sampling_ms, abs=0.15)
    assert profile.d_ms + profile.e_ms * sequences == pytest.approx(decision_ms, abs=0.15)


def test_the_bench_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agentix, "FEW_LOADS", (1.0,))
    shown = CliRunner().invoke(
        agentix.command,
        ["--programs", "10", "--seeds", "0,1", "--loads", "0.5,1"],
        catch_exceptions=False,
    )
    assert "all simulated" in shown.output
    assert "Agentix, fine quanta" in shown.output
    assert " | " in shown.output  # a value per seed
    assert "mixed, over MLFQ (paper: up to 5.5):" in shown.output
    assert "a batch: Agentix" in shown.output
    some = ["--programs", "10", "--only", "curves", "--workload", "BFCL", "--loads", "1", "--json"]
    result = CliRunner().invoke(agentix.command, some, catch_exceptions=False)
    simulated = json.loads(result.output)["simulated"]
    rows = simulated["curves"]
    assert [*simulated] == ["curves"]
    assert [(row["workload"], row["system"]) for row in rows] == [
        ("BFCL", system.name) for system in SYSTEMS
    ]
    assert all(row["average_ms"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--loads", "0"], "'0' should be multiples from 0.01 to 100 separated by commas, as in"),
        (["--loads", "nan"], "'nan' should be multiples from 0.01 to 100"),
        (["--only", "replicas", "--workload", "LATS"], "replicas have no runs of LATS"),
        (["--seeds", "0,x"], "'0,x' should be whole numbers separated by commas, as in 0,1,2"),
    ],
)
def test_wrong_options_are_one_sentence(options: list[str], message: str) -> None:
    refused = CliRunner().invoke(agentix.command, options)
    assert refused.exit_code == 2
    assert message in refused.output


def test_an_unknown_profile_is_refused_before_processes_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agentix, "in_processes", None)
    with pytest.raises(MetropolisError, match="there is no profile 'nosuch'"):
        CliRunner().invoke(agentix.command, ["--profile", "nosuch"], catch_exceptions=False)
