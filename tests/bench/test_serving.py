"""`metropolis bench serving`, small: a cell for every policy and dispatcher."""

from __future__ import annotations

import json
from importlib.resources import files
from itertools import product
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from metropolis.bench import serving
from metropolis.bench.serving.measure import MIXES, Bench, Place
from metropolis.types import MetropolisError

POLICIES = ("fcfs", "step:bucket=2+kairos")
DISPATCHERS = ("least_used", "kairos", "prefix:share=0.3")
SMALL = ["--agents", "3", "--instances", "2", "--programs", "20"]


def options() -> list[str]:
    policies = [f"--policy={name}" for name in POLICIES]
    return [*SMALL, *policies, *(f"--dispatcher={name}" for name in DISPATCHERS)]


@pytest.fixture(autouse=True)
def _shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SMALLVILLE", Place("SmallVille", 5, 1, 2, (12.0, 12.05)))
    monkeypatch.setattr(serving, "LIVE", (Place("LargeVille", 4, 2, 1, live_steps=1),))


def test_every_pair_is_measured_with_every_seed() -> None:
    arguments = [*options(), "--seeds", "0,1", "--json"]
    result = CliRunner().invoke(serving.command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    pairs = list(product(POLICIES, DISPATCHERS))
    assert found["simulated"] is True
    rows = [*found["replays"], *found["live"]]
    places = [(one["place"]["agents"], one["place"]["instances"]) for one in rows]
    assert list(dict.fromkeys(places)) == [(5, 1), (3, 1), (4, 2)]
    for part, places_count in (("replays", 2), ("live", 1), ("mixes", len(MIXES))):
        cells = [(one["seed"], one["policy"], one["dispatcher"]) for one in found[part]]
        each = [(seed, *pair) for seed in (0, 1) for _ in range(places_count) for pair in pairs]
        assert cells == each
    for one in rows:
        assert 0 <= one["queueing_mean_sim_s"] < one["call_mean_sim_s"] < one["makespan_sim_s"]
    for one in found["live"]:
        assert one["queueing_mean_sim_s"] > 0  # 4 agents, 2 sequences
    for one in found["mixes"]:
        assert 0 < one["average_ms"] <= one["p99_ms"]


def test_the_title_of_a_narrow_table_is_not_broken_into_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("[").mkdir()
    profile = (files("metropolis.sim") / "profiles" / "llama-3-8b.toml").read_text()
    Path("[/b].toml").write_text(profile)
    narrow = [*SMALL, "--policy=fcfs", "--dispatcher=least_used", "--only=mixes"]
    narrow += ["--profile", "[/b].toml/l4"]
    result = CliRunner().invoke(serving.command, narrow, catch_exceptions=False)
    assert "20 programs at load 1.1, 2 x [/b].toml/l4" in result.output


def test_the_tables_name_every_policy_and_dispatcher() -> None:
    result = CliRunner().invoke(serving.command, options(), catch_exceptions=False)
    for name in (*POLICIES, *DISPATCHERS, *MIXES, "replayed", "live", "all simulated"):
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
    for measure in ("replayed", "live"):
        monkeypatch.delattr(Bench, measure)
    with pytest.raises((MetropolisError, click.BadParameter), match=sentence):
        serving.command.main([*SMALL, option, name], standalone_mode=False)
