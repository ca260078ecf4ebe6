"""The comparison of the modes at the end of `metropolis run`."""

from __future__ import annotations

from pathlib import Path

import pytest

from metropolis.bench.stub_server import stub_server
from tests.cli.conftest import summary
from tests.commands import Command

SMALL = "w_ms=1\ng_ms=0\nh_ms=1\nb_ms=0\nk_ms=0\nq_ms=0\nc_ms=0\nkv_capacity_tokens=16\nsource=''"


def test_what_a_mode_took_live_is_what_its_replay_takes(run: Command) -> None:
    for mode in ("sequential", "lockstep", "out_of_order"):
        live = summary(run, "minimal", "--mode", mode)
        row = next(row for row in live["comparison"] if row["mode"] == mode)
        assert row["makespan_sim_s"] == pytest.approx(live["makespan_s"], rel=1e-9)


@pytest.mark.parametrize("reach", ["radius=math.inf", "joint=-1"])
def test_worlds_of_any_reach_are_compared_and_estimated(run: Command, reach: str) -> None:
    code = Path("meadow.py").read_text().replace("joint=2", reach)
    Path("any.py").write_text(f"import math\n{code}")
    options = ("any.py", "--mode", "lockstep", "--steps", "4", "--quiet")
    live = summary(run, *options)
    row = next(row for row in live["comparison"] if row["mode"] == "lockstep")
    estimated = summary(run, *options, "--estimate")["makespan_sim_s"]["lockstep"]
    assert row["makespan_sim_s"] == estimated == live["makespan_s"] > 0


def test_a_comparison_says_that_it_ignores_the_limit_of_calls(run: Command) -> None:
    for options, is_said in ((("--concurrency", "2"), True), (("--concurrency", "5000"), False)):
        _, out, _ = run("meadow.py", "--steps", "4", "--quiet", *options)
        assert ("with any number of calls in flight:" in " ".join(out.split())) is is_said


def test_a_run_whose_modes_cannot_be_compared_has_ended_well(run: Command) -> None:
    Path("small.toml").write_text(SMALL)
    with stub_server(0.0, 0) as url:
        options = ("minimal", "--llm", url, "--profile", "small.toml", "--quiet")
        status, said, _ = run(*options, "--out", "ended")
        ended = summary(run, *options)
    assert status == 0
    words = " ".join(said.split())
    assert "history_sha256" in words
    assert "There is no comparison of the modes: step " in words
    assert "does not fit an instance of small.toml, which holds 16 KV tokens" in words
    assert "metropolis replay ended/trace.parquet --profile NAME" in words
    assert ended["comparison"] == []
    assert ended["no_comparison"].startswith("There is no comparison")


def test_a_trace_of_another_run_is_not_compared(run: Command) -> None:
    for seed in ("1", "2"):
        assert run("minimal", "--steps", "30", "--quiet", "--seed", seed, "--out", seed)[0] == 0
    assert summary(run, "--resume", "1", "--quiet")["comparison"]
    Path("1/trace.parquet").write_bytes(Path("2/trace.parquet").read_bytes())
    told = summary(run, "--resume", "1", "--quiet")
    assert told["comparison"] == []
    assert "1/trace.parquet: is not the trace of this run; remove it" in told["no_comparison"]
