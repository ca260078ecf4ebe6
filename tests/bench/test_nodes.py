"""`metropolis bench nodes`: one of two Ray nodes dies, and the history is lockstep's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from metropolis.bench import nodes
from metropolis.bench.nodes import KILL_AT, KILLED, LOCKSTEP, OUT_OF_ORDER, Measured

OPTIONS = ["--agents", "20", "--steps", "16", "--mean-s", "0.4", "--json"]


@pytest.mark.campaign  # two minutes, with three runs on Ray
def test_a_node_is_killed_and_the_history_is_that_of_lockstep() -> None:
    found = CliRunner().invoke(nodes.command, OPTIONS, standalone_mode=False)
    assert found.return_value == 0, found.output
    measured = {run["way"]: run for run in json.loads(found.stdout)["runs"]}
    assert list(measured) == [LOCKSTEP, OUT_OF_ORDER, KILLED]
    assert len({(run["history_sha256"], run["calls"]) for run in measured.values()}) == 1
    assert measured[LOCKSTEP]["killed_at"] is measured[OUT_OF_ORDER]["killed_at"] is None
    assert KILL_AT <= measured[KILLED]["killed_at"] < 1


@pytest.mark.parametrize("equal", [True, False])
def test_the_exit_status_tells_whether_histories_are_equal(
    monkeypatch: pytest.MonkeyPatch, equal: bool
) -> None:
    def campaign(_folder: Path, *_: object) -> list[Measured]:
        return [
            Measured(LOCKSTEP, 8.0, "a", 3, 3, None),
            Measured(OUT_OF_ORDER, 2.0, "a" if equal else "b", 3, 4, None),
        ]

    monkeypatch.setattr(nodes, "campaign", campaign)
    found = CliRunner().invoke(nodes.command, [], standalone_mode=False)
    assert found.return_value == (not equal)
    assert " 4.00 " in found.stdout
