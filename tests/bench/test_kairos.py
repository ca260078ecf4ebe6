"""`metropolis bench kairos`, small: every system under every load, with the paper's ranges."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from metropolis.bench import kairos
from metropolis.sim.fleet import SimulatedFleet
from metropolis.trace.generate.agentic import APPLICATIONS, CO_LOCATED

SMALL = ["--programs", "20", "--history", "20", "--instances", "1"]


@pytest.fixture(autouse=True)
def _fewer_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kairos, "LOADS", (0.5, 2.0))


def test_every_system_is_measured_and_reductions_are_right() -> None:
    result = CliRunner().invoke(kairos.command, [*SMALL, "--json"], catch_exceptions=False)
    rows = json.loads(result.output)["simulated"]
    seen = [(row["application"], row["load"], row["system"]) for row in rows]
    names = [*APPLICATIONS, CO_LOCATED]
    assert seen == [(a, load, s) for a in names for load in (0.5, 2.0) for s in kairos.SYSTEMS]
    for row in rows:
        row["tails_ms"] = {int(tail): ms for tail, ms in row["tails_ms"].items()}
    measured = [kairos.Measured(**row) for row in rows]
    ms = {(m.application, m.load, m.system): m.tails_ms[90] for m in measured}
    for (name, load), percent in kairos.reduction_by_kairos(measured, "Parrot", "P90").items():
        theirs, ours = ms[name, load, "Parrot"], ms[name, load, "Kairos"]
        assert theirs * (1 - percent / 100) == pytest.approx(ours)


def test_the_papers_ranges_are_printed_beside_ours() -> None:
    result = CliRunner().invoke(kairos.command, SMALL, catch_exceptions=False)
    for text in ("QA: Kairos' average is", "Kairos' P99 is", "(paper: 45.1 to 72.8 %)", "83.5%"):
        assert text in " ".join(result.output.split())


def test_a_history_is_learned_from_and_not_measured() -> None:
    fleet = SimulatedFleet.uniform("llama-3-8b/l4")
    untrained, trained = (
        kairos.measure(CO_LOCATED, 0.001, 0.4, 6, history, fleet, 0) for history in (0, 60)
    )
    for one, other in zip(untrained, trained, strict=True):  # programs never overlap
        assert other.average_ms == pytest.approx(one.average_ms)
    accuracy = [{one.system: one.accuracy for one in measured} for measured in (untrained, trained)]
    assert accuracy[0]["Ayo"] == accuracy[1]["Ayo"]
    assert accuracy[0]["Kairos"] + 0.1 < accuracy[1]["Kairos"]
