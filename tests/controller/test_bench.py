import json

import pytest
from click.testing import CliRunner

from metropolis.bench.controller import command


@pytest.mark.parametrize("rule", ["lockstep", "conservative", "versioned", "no_dependency"])
def test_bench_prints_what_it_measured(rule: str) -> None:
    arguments = ["--agents", "1,25,300", "--steps", "20", "--rule", rule, "--json"]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    rows = json.loads(result.output)
    assert [row["agents"] for row in rows] == [1, 25, 300]
    for row in rows:
        assert row["agent_steps_per_cpu_s"] > 0
        assert 0 <= row["commit_p50_us"] <= row["commit_p99_us"] <= row["commit_max_us"]
        assert row["skew_max_steps"] <= 20
    assert rows[2]["bytes_per_agent"] <= 64
    if rule == "lockstep":
        assert rows[2]["skew_max_steps"] == 0


def test_bench_prints_a_table() -> None:
    result = CliRunner().invoke(command, ["--agents", "25", "--steps", "5"])
    assert result.exit_code == 0
    assert "3.50" in result.output


def test_bench_of_a_speculation() -> None:
    arguments = ["--agents", "1,300", "--steps", "20", "--rule", "optimistic"]
    result = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    rows = json.loads(result.output)
    assert [row["agents"] for row in rows] == [1, 300]
    for row in rows:
        assert row["agent_steps_per_cpu_s"] > 0
        assert row["commit_p50_us"] is None
        assert row["skew_max_steps"] < 20
    assert CliRunner().invoke(command, arguments).exit_code == 0
    refused = CliRunner().invoke(command, [*arguments, "--metric", "manhattan"])
    assert refused.exit_code == 2
    assert "is measured with --metric chebyshev only" in refused.output


def test_bench_refuses_invalid_sizes() -> None:
    result = CliRunner().invoke(command, ["--agents", "25,many"])
    assert result.exit_code == 2
    assert "is not a list of numbers from 1 to" in result.output
