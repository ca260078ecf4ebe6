"""`metropolis bench serving-overhead`, small: every plug-in is measured."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from metropolis.bench import serving_overhead
from metropolis.policy.named import DISPATCHERS, POLICIES, names_of


def test_every_plug_in_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_overhead, "UPDATED_FUNCTIONS", (10, 40))
    options = ["--queued", "200", "--requests", "400"]
    result = CliRunner().invoke(serving_overhead.command, [*options, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    measured = [(row["kind"], row["name"]) for row in found["overheads"]]
    policies = [*names_of(POLICIES), *serving_overhead.COMBINED_POLICIES]
    assert measured == [(POLICIES, name) for name in policies] + [
        (DISPATCHERS, name) for name in names_of(DISPATCHERS)
    ]
    for row in found["overheads"]:
        assert 0 < row["mean_us"] <= row["max_us"]
        assert 0 < row["p99_us"] <= row["max_us"]
    assert [row["functions"] for row in found["updates"]] == [10, 40]
    table = CliRunner().invoke(serving_overhead.command, options, terminal_width=100)
    assert "Update of Kairos' order" in table.output
