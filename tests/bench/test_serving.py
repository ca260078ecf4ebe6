"""`metropolis bench serving`, small: a cell for every policy and dispatcher."""

from __future__ import annotations

import json
from itertools import product

import click
import pytest
from click.testing import CliRunner

from metropolis.bench import serving
from metropolis.bench.serving.measure import MIXES
from metropolis.types import MetropolisError

POLICIES = ("fcfs", "step:bucket=2+kairos")
DISPATCHERS = ("least_used", "kairos", "prefix:share=0.3")
SMALL = ["--agents", "3", "--instances", "2", "--programs", "20"]


def options() -> list[str]:
    policies = [f"--policy={name}" for name in POLICIES]
    return [*SMALL, *policies, *(f"--dispatcher={name}" for name in DISPATCHERS)]


@pytest.fixture(autouse=True)
def _shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HOURS", (12.0, 12.05))
    monkeypatch.setattr(serving, "SMALLVILLE", serving.Place("SmallVille", 5, 1))


def test_every_pair_is_measured() -> None:
    result = CliRunner().invoke(serving.command, [*options(), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    pairs = list(product(POLICIES, DISPATCHERS))
    assert found["simulated"] is True
    places = [(row["place"]["agents"], row["place"]["instances"]) for row in found["replays"]]
    assert list(dict.fromkeys(places)) == [(5, 1), (3, 2), (6, 1)]
    assert [(row["policy"], row["dispatcher"]) for row in found["replays"]] == 3 * pairs
    assert [(row["policy"], row["dispatcher"]) for row in found["mixes"]] == len(MIXES) * pairs
    for row in found["replays"]:
        assert 0 < row["call_mean_sim_s"] < row["makespan_sim_s"]
    for row in found["mixes"]:
        assert 0 < row["average_ms"] <= row["p99_ms"]


def test_the_tables_name_every_policy_and_dispatcher() -> None:
    result = CliRunner().invoke(serving.command, options(), catch_exceptions=False)
    for name in (*POLICIES, *DISPATCHERS, *MIXES, "SmallVille", "LargeVille", "all simulated"):
        assert name in result.output


@pytest.mark.parametrize(
    ("option", "name", "sentence"),
    [
        ("--policy", "lifo", "'lifo' is not among the policies"),
        ("--policy", "step:bucket=0", "step: bucket is 0"),
        ("--policy", "topology", "'topology' is not for replays: .* how many stages are left"),
        ("--load", "nan", "nan is not in the range"),
        ("--dispatcher", "nope", "'nope' is not among the dispatchers"),
    ],
)
def test_a_wrong_option_is_reported_before_any_work(
    monkeypatch: pytest.MonkeyPatch, option: str, name: str, sentence: str
) -> None:
    monkeypatch.delattr(serving.Bench, "replayed")
    with pytest.raises((MetropolisError, click.BadParameter), match=sentence):
        serving.command.main([*SMALL, option, name], standalone_mode=False)
