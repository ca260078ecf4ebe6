"""`metropolis bench kairos`, small: every system under every load, with the paper's ranges."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from metropolis.bench import kairos
from metropolis.bench.kairos.measure import SYSTEMS, Bench, Measured
from metropolis.bench.kairos.paper import bands_of
from metropolis.bench.kairos.tables import OverSeeds, accuracies, reductions
from metropolis.trace.generate.agentic import APPLICATIONS, CO_LOCATED

SMALL = ["--programs", "20", "--history", "20", "--instances", "1"]
ONE = Measured(0, CO_LOCATED, 1.0, 1.0, "Kairos", 60.0, {90: 1.0, 95: 1.0, 99: 1.0}, 0.5, 0, 0.8)


@pytest.fixture(autouse=True)
def _fewer_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kairos, "LOADS", (0.5, 2.0))


def test_every_system_is_measured_with_every_seed() -> None:
    command = [*SMALL, "--seeds", "0,3", "--json"]
    result = CliRunner().invoke(kairos.command, command, catch_exceptions=False)
    found = json.loads(result.output)
    seen = [(r["seed"], r["application"], r["load"], r["system"]) for r in found["simulated"]]
    names = [*APPLICATIONS, CO_LOCATED]
    assert seen == [
        (n, a, x, s) for n in (0, 3) for a in names for x in (0.5, 2.0) for s in SYSTEMS
    ]
    (tail,) = (
        one
        for one in found["lower_by_per_cent"]
        if (one["application"], one["than"], one["which"]) == ("QA", "Parrot", "P90")
    )
    ms = {
        (r["seed"], r["system"]): r["tails_ms"]["90"]
        for r in found["simulated"]
        if r["application"] == "QA" and r["load"] == 2.0
    }
    lower = [100 * (1 - ms[seed, "Kairos"] / ms[seed, "Parrot"]) for seed in (0, 3)]
    assert tail["by_load"]["2.0"]["mean"] == pytest.approx(sum(lower) / 2)
    assert tail["by_load"]["2.0"]["spread"] == pytest.approx(abs(lower[0] - lower[1]) / 2**0.5)


def test_the_papers_ranges_are_printed_beside_ours() -> None:
    command = [*SMALL, "--application", CO_LOCATED]
    result = CliRunner().invoke(kairos.command, command, catch_exceptions=False)
    for text in ("45.1 to 72.8", "9.5 to 10.6", "83.5", "20 programs of an application"):
        assert text in result.output


def test_the_larger_model_has_ranges_of_its_own() -> None:
    assert bands_of("llama-2-13b/a40-tp1")[CO_LOCATED]["Ayo"]["average"] == (21.8, 24.6)
    rows = [
        replace(ONE, system=system, average_ms=ms)
        for system, ms in zip(SYSTEMS, (80, 75, 60, 70, 66), strict=True)
    ]
    found = {(one.than, one.which): one for one in reductions(rows, bands_of("llama-2-13b/x"))}
    assert found["Ayo", "average"].by_load == {1.0: OverSeeds(pytest.approx(20.0), 0.0)}
    assert found["no packing", "average"].paper is None


def test_accuracies_are_weighted_as_the_papers_scenarios() -> None:
    rows = [
        replace(ONE, seed=seed, application=application, load=load, system=system, accuracy=right)
        for seed in (0, 1)
        for application, right in (("QA", 0.6), ("RG", 0.7), ("CG", 0.8), (CO_LOCATED, 0.9))
        for load in (0.5, 1.0)
        for system in SYSTEMS
    ]
    expected = OverSeeds(pytest.approx(72.0), pytest.approx(0.0))
    assert accuracies(rows)["Kairos"] == {0.5: expected, 1.0: expected}


def test_fewer_programs_fill_a_fleet_of_fewer_sequences() -> None:
    fleet = ("llama-3-8b/a40-tp1:1", "llama-3-8b/a40-tp1:1")
    few, some, many = (
        Bench(fleet, sequences, 1, 0, 0).measure("QA", 1.0)[0].programs_per_s
        for sequences in (1, 2, 4096)
    )
    assert few < some < 2 * few  # a larger batch is slower
    assert many < 4096 * few / 4  # memory is the limit


def test_a_history_is_learned_from_and_not_measured() -> None:
    untrained, trained = (
        Bench(("llama-3-8b/l4",), 256, 2, history, 0).measure(CO_LOCATED, 0.001)
        for history in (0, 60)
    )
    for one, other in zip(untrained, trained, strict=True):  # programs never overlap
        assert other.average_ms == pytest.approx(one.average_ms)
    accuracy = [{one.system: one.accuracy for one in measured} for measured in (untrained, trained)]
    assert accuracy[0]["Ayo"] == accuracy[1]["Ayo"]
    assert accuracy[0]["Kairos"] + 0.1 < accuracy[1]["Kairos"]
