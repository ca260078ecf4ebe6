"""`metropolis bench kairos`, small: every system at every load, with the paper's ranges."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from metropolis.bench import kairos
from metropolis.bench.kairos import kept, measure
from metropolis.bench.kairos.measure import NEAR, SYSTEMS, Bench, Measured, next_rate
from metropolis.bench.kairos.paper import bands_of
from metropolis.bench.kairos.tables import OverSeeds, accuracies, reductions
from metropolis.durable import DamagedError
from metropolis.sim.profiles import load_profile
from metropolis.trace.generate.agentic import CO_LOCATED

SMALL = ["--minutes", "0.2", "--history", "20", "--instances", "1", "--loads", "1,20"]
ONE = Measured(0, CO_LOCATED, 50.0, 1.0, "Kairos", 60.0, {90: 1.0, 95: 1.0, 99: 1.0}, 0.5, 0, 0.8)


def test_every_system_is_measured_with_every_seed() -> None:
    command = [*SMALL, "--application", "QA", "--application", "RG", "--seeds", "0,3", "--json"]
    result = CliRunner().invoke(kairos.command, command, catch_exceptions=False)
    found = json.loads(result.output)
    seen = [(r["seed"], r["application"], r["load"], r["system"]) for r in found["simulated"]]
    assert seen == [
        (n, a, x, s) for n in (0, 3) for a in ("QA", "RG") for x in (1.0, 20.0) for s in SYSTEMS
    ]
    for row in found["simulated"]:
        assert 0 < row["average_ms"] <= row["tails_ms"]["99"] * 1.01
        assert 0 <= row["queueing_share"] < 1
        blind = row["system"] in ("Parrot", "no priority")
        assert row["accuracy"] == 0.5 if blind else row["accuracy"] > 0.4, row
    (tail,) = (
        one
        for one in found["lower_by_per_cent"]
        if (one["application"], one["than"], one["which"]) == ("QA", "Parrot", "P90")
    )
    ms = {
        (r["seed"], r["system"]): r["tails_ms"]["90"]
        for r in found["simulated"]
        if r["application"] == "QA" and r["load"] == 20.0
    }
    lower = [100 * (1 - ms[seed, "Kairos"] / ms[seed, "Parrot"]) for seed in (0, 3)]
    assert tail["by_load"]["20.0"]["mean"] == pytest.approx(sum(lower) / 2)
    assert tail["by_load"]["20.0"]["spread"] == pytest.approx(abs(lower[0] - lower[1]) / 2**0.5)
    assert tail["mean"] == tail["by_load"]["20.0"]  # nothing queues at 1 %


def test_the_papers_ranges_are_printed_beside_ours() -> None:
    command = [*SMALL, "--application", CO_LOCATED]
    result = CliRunner().invoke(kairos.command, command, catch_exceptions=False)
    for text in ("45.1 to 72.8", "9.5 to 10.6", "83.5", "20 programs before them"):
        assert text in result.output


@pytest.mark.parametrize(
    ("profile", "tokens"), [("llama-3-8b/a40-tp1", 218_014), ("llama-2-13b/a40-tp1", 22_699)]
)
def test_the_paper_s_gpus_hold_as_much_as_the_documents_say(profile: str, tokens: int) -> None:
    assert load_profile(profile).kv_capacity_tokens == tokens


def test_the_larger_model_has_ranges_of_its_own() -> None:
    assert bands_of("llama-2-13b/a40-tp1")[CO_LOCATED]["Ayo"]["average"] == (21.8, 24.6)
    rows = [
        replace(ONE, system=system, average_ms=ms)
        for system, ms in zip(SYSTEMS, (80, 75, 60, 70, 66), strict=True)
    ]
    found = {(one.than, one.which): one for one in reductions(rows, bands_of("llama-2-13b/x"))}
    assert found["Ayo", "average"].by_load == {50.0: OverSeeds(pytest.approx(20.0), 0.0)}
    assert found["no packing", "average"].paper is None


def test_the_mean_is_over_the_loads_with_queueing() -> None:
    rows = [
        replace(ONE, seed=seed, load=load, system=system, average_ms=ours)
        for seed, gains in ((0, (0, 10, 20)), (1, (0, 20, 60)))
        for load, gain in zip((1.0, 30.0, 90.0), gains, strict=True)
        for system in SYSTEMS
        for ours in (100 - gain if system == "Kairos" else 100,)
    ]
    (found,) = (one for one in reductions(rows, {}) if (one.than, one.which) == ("Ayo", "average"))
    assert found.mean == OverSeeds(pytest.approx(27.5), pytest.approx(25 / 2**0.5))
    assert found.by_load[30.0].mean == pytest.approx(15)
    (none,) = {one.mean for one in reductions(rows[: len(SYSTEMS)], {})}
    assert none is None


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


def test_the_rate_is_sought_at_which_parrot_queues_as_long_as_asked() -> None:
    bench = Bench(("llama-3-8b/l4",), 256, 5, 20, 0)
    measured = list(bench.measure("RG", (10, 60)))
    assert [one.system for one in measured] == [*SYSTEMS, *SYSTEMS]
    for one in measured:
        if one.system == "Parrot":
            assert one.queueing_share == pytest.approx(one.load / 100, abs=NEAR)
    low, high = (measured[at].programs_per_s for at in (0, len(SYSTEMS)))
    assert low < high


@pytest.mark.parametrize(
    ("shares", "goal", "least", "most"),
    [
        ({2.0: 0.0}, 0.5, 2.5, 2.7),
        ({2.0: 0.9}, 0.5, 1.5, 1.6),
        ({2.0: 0.2, 4.0: 0.6}, 0.5, 3.49, 3.51),
        ({2.0: 0.0, 4.0: 0.5}, 0.5, 3.79, 3.81),
        ({2.0: 0.6, 4.0: 0.4}, 0.5, 2.9, 3.1),
    ],
)
def test_the_next_rate_lies_between_those_beside_the_goal(
    shares: dict[float, float], goal: float, least: float, most: float
) -> None:
    assert least <= next_rate(shares, goal) <= most


def test_the_lengths_of_answers_can_be_given() -> None:
    command = [*SMALL, "--application", "RG", "--loads", "1", "--json"]
    command += ["--answer-tokens", "writer=20, researcher=10"]
    result = CliRunner().invoke(kairos.command, command, catch_exceptions=False)
    assert json.loads(result.output)["answer_tokens"] == {"writer": 20, "researcher": 10}
    usual = Bench(("llama-3-8b/l4",), 256, 1, 0, 0)
    short = replace(usual, medians=(("writer", 20), ("researcher", 10)))
    assert short.busy_per_s("RG") > 5 * usual.busy_per_s("RG")


LOADS = "should be per cents from 0 to 95 separated by commas, as in 1,30,50,70,90"


@pytest.mark.parametrize(
    ("option", "text", "sentence"),
    [
        *(("--loads", text, LOADS) for text in ("", "1,", "x", "nan", "-1", "96")),
        ("--answer-tokens", "writr=3", "'writr=3' names no function (did you mean 'writer'?)"),
        ("--answer-tokens", "writer", "'writer' names no function"),
        ("--answer-tokens", "writer=0", "'writer=0' should end with a number of tokens from 1"),
        ("--answer-tokens", "writer=2049", "from 1 to 2048"),
        ("--answer-tokens", "router=1,writer=x", "'writer=x' should end with a number"),
        ("--answer-tokens", "router=2", "'router' is not a function of RG; there are researcher,"),
    ],
)
def test_a_wrong_option_is_one_sentence(option: str, text: str, sentence: str) -> None:
    result = CliRunner().invoke(kairos.command, ["--application", "RG", option, text])
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())


def test_fewer_programs_fill_a_fleet_of_fewer_sequences() -> None:
    fleet = ("llama-3-8b/a40-tp1:1", "llama-3-8b/a40-tp1:1")
    few, some, many = (
        Bench(fleet, sequences, 1, 0, 0).busy_per_s("QA") for sequences in (1, 2, 4096)
    )
    assert few < some < 2 * few  # a larger batch is slower
    assert many < 4096 * few / 4  # memory is the limit


def test_a_history_is_learned_from_and_not_measured() -> None:
    """Programs that never overlap take the same time after a history, which is not counted."""
    fleet, per_s = ("llama-3-8b/l4",), 0.001
    untrained, trained = (
        [Bench(fleet, 256, 60, history, 0).serve("CG", system, per_s) for system in SYSTEMS]
        for history in (0, 20)
    )
    for one, other in zip(untrained, trained, strict=True):
        assert other.average_ms == pytest.approx(one.average_ms)
    accuracy = [{one.system: one.accuracy for one in measured} for measured in (untrained, trained)]
    assert accuracy[0]["Ayo"] == accuracy[1]["Ayo"]
    assert accuracy[0]["Kairos"] < accuracy[1]["Kairos"]


def test_a_run_that_a_folder_keeps_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(("llama-3-8b/l4",), 256, 0.2, 5, 0, keep=tmp_path)
    measured = bench.serve("RG", "Kairos", 1.0)
    assert measured == replace(bench, keep=None).serve("RG", "Kairos", 1.0)
    (path,) = tmp_path.iterdir()
    monkeypatch.delattr(measure, "WorkloadSimulation")
    assert bench.serve("RG", "Kairos", 1.0) == measured
    changed = replace(bench, seed=1), replace(bench, history=6)
    others = *((one, "Kairos", 1.0) for one in changed), (bench, "Ayo", 1.0), (bench, "Kairos", 2.0)
    for other, system, per_s in others:
        with pytest.raises(NameError):
            other.serve("RG", system, per_s)
    path.write_bytes(path.read_bytes().replace(b"RG", b"QA"))
    with pytest.raises(DamagedError, match=r"is damaged .*; delete the file, and its run is rep"):
        bench.serve("RG", "Kairos", 1.0)
    monkeypatch.setattr(kept, "_program", lambda: b"another version")
    with pytest.raises(NameError):
        bench.serve("RG", "Kairos", 1.0)


def test_a_stopped_benchmark_goes_on(tmp_path: Path) -> None:
    command = [*SMALL, "--application", "RG", "--json", "--keep", str(tmp_path / "new" / "folder")]

    def run() -> str:
        return CliRunner().invoke(kairos.command, command, catch_exceptions=False).output

    first = run()
    files = sorted((tmp_path / "new" / "folder").iterdir())
    files.pop().unlink()
    before = [path.stat().st_mtime_ns for path in files]
    assert run() == first
    assert [path.stat().st_mtime_ns for path in files] == before
