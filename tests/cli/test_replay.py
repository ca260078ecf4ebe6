"""`metropolis replay` from the command line."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from metropolis.runtime.replays.modes import MODES
from metropolis.trace.parquet import write_trace
from tests.cli.conftest import OWN_POLICY
from tests.commands import Command
from tests.small_traces import small_trace

FIELDS = {
    "mode", "rule", "metric", "policy", "dispatcher", "instances", "agents", "steps", "calls",
    "makespan_sim_s", "speedup_over_lockstep", "share_of_oracle", "share_of_oracle_values",
    "achieved_parallelism",
    "queueing_mean_sim_s", "queueing_p50_sim_s", "queueing_p99_sim_s", "utilisation",
    "controller_us_per_agent_step", "simulated", "perception_radius", "max_velocity", "speculation",
}  # fmt: skip


BOUNDS = ("--modes", "no_dependency,critical_path")
"""Bounds use no policy."""


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "small.parquet"
    small = small_trace(5, agents=6, steps=12, edge=20, radius=2)
    tokens = small.calls.prompt_tokens
    prefixes = {"prefix_id": np.zeros(len(tokens), np.int64), "prefix_tokens": tokens // 2}
    write_trace(replace(small, calls=replace(small.calls, **prefixes)), path)
    return str(path)


@pytest.fixture
def replay(metropolis: Command, trace: str) -> Command:
    """`metropolis replay` of the trace."""
    return lambda *options: metropolis("replay", trace, *options)


def test_a_folder_of_a_run_and_the_mode_of_live_runs(
    metropolis: Command, trace: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    Path(trace).rename(folder / "trace.parquet")
    options = ("--modes", "out_of_order", "--figures", str(tmp_path / "figures"))
    (row,) = json.loads(metropolis("replay", folder, *options, "--json").result)
    assert (row["mode"], row["rule"]) == ("out_of_order", "versioned")
    assert (tmp_path / "figures" / "gantt.svg").exists()
    assert "\nout_of_order " in metropolis("replay", folder, *options[:2]).result


def test_a_policy_in_a_file_of_ones_own(replay: Command, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN_POLICY)
    policies = (f"{own}:Mine", f"{own}:Mine:base=5", f"step+{own}:Mine")
    given = [part for policy in policies[:2] for part in ("--policy", policy)]
    rows = json.loads(replay("--modes", "versioned", *given, "--json").result)
    assert [row["policy"] for row in rows] == list(policies[:2])
    misspelt = replay("--policy", f"{own}:Mine:bose=5")
    assert "own.py:Mine has no option 'bose'; its options: base" in misspelt.refusal
    refusal = replay("--policy", policies[2]).refusal
    assert "which leaves too few for the policies before it" in refusal


def test_the_name_of_a_trace_is_printed_as_it_is(metropolis: Command, tmp_path: Path) -> None:
    small = small_trace(5, agents=2, steps=3, edge=20, radius=2)
    path = tmp_path / "small.parquet"
    write_trace(replace(small, meta=replace(small.meta, name=":smile: \x1b[2J")), path)
    printed = metropolis("replay", path, "--modes", "lockstep").result
    assert printed.startswith(r":smile: \x1b[2J, hours all: ")


def test_bounds_alone_are_not_recorded(replay: Command, tmp_path: Path) -> None:
    refusal = replay(*BOUNDS, "--record", tmp_path / "to").refusal
    assert "show executions, and all of --modes are bounds" in refusal
    assert not (tmp_path / "to").exists()


def test_outputs_tell_the_settings(replay: Command) -> None:
    placed = ("--modes", "versioned", "--dispatcher", "prefix", "--prefix-reuse")
    risk = ("--modes", "versioned,optimistic", "--speculation", "0.1", "--radius", "3")
    for options, told in (
        (placed, "policy step, dispatcher prefix, prefix reuse; chebyshev"),
        (risk, "policy step; chebyshev metric, radius 3, velocity 1, speculation 0.1."),
    ):
        assert told in replay(*options).result.replace("\n", " ").replace("  ", " ")
    rows = json.loads(replay(*risk, "--json").result)
    assert [row["speculation"] for row in rows] == [None, "0.1"]
    assert {(row["perception_radius"], row["max_velocity"]) for row in rows} == {(3, 1)}


def test_the_queueing_of_calls(replay: Command) -> None:
    options = ("--modes", "sequential,no_dependency", "--policy", "step", "--policy", "kairos")
    for row in json.loads(replay(*options, "--json").result):
        values = [row[f"queueing_{name}_sim_s"] for name in ("mean", "p50", "p99")]
        expected = [None] * 3 if row["mode"] == "no_dependency" else pytest.approx([0.0] * 3)
        assert values == expected, row["mode"]
    printed = replay(*options).result
    assert len(re.findall(r"queueing of calls, sim_s +mean +p50 +p99", printed)) == 2
    assert len(re.findall(r"sequential +0\.00 +0\.00 +0\.00", printed)) == 2


def test_figures_without_matplotlib_are_refused_before_any_work(
    replay: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    told = replay("--figures", tmp_path / "figures")
    assert "figures need matplotlib" in told.refusal
    assert told.out == ""
    assert not (tmp_path / "figures").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("replay", "--modes", "lockstp"), "out_of_order (did you mean 'lockstep'?)"),
        (("replay", "--metric", "chebishev"), "'hops' (did you mean 'chebyshev'?)"),
        (("replay", "--policy", "kairo"), "the policies (did you mean 'kairos'?)"),
        (("replay", "--dispatcher", "karios"), "the dispatchers (did you mean 'kairos'?)"),
        (("replay", "--dispatcher", ""), "'' is not among the dispatchers"),
        (("replay", "--profile", "llama-3-8b/l5"), "(did you mean 'llama-3-8b/l4'?)"),
        (("replai",), "there is no command 'replai' (did you mean 'replay'?); there are ask,"),
        (("bench", "controler"), "there is no command 'controler' (did you mean 'controller'?)"),
        (("trace", "imprt"), "No such command 'imprt'"),
    ],
)
def test_misspelt_names_are_told_with_the_nearest(
    metropolis: Command, trace: str, arguments: tuple[str, ...], sentence: str
) -> None:
    where = (trace,) if arguments[0] == "replay" else ()
    assert sentence in metropolis(*arguments, *where).refusal


def test_json_has_a_row_for_every_mode_and_setting(replay: Command) -> None:
    policies = ("--policy", "step", "--policy", "fcfs", "--policy", "step")
    found = replay("--instances", "1,3,1", *policies, "--agents", "2,6", "--json").result
    rows = json.loads(found)
    assert len(rows) == (len(MODES) - 1) * 2 * 2 * 2  # two of six agents lack dependencies by value
    for row in rows:
        assert set(row) >= FIELDS
        assert row["simulated"] is True
        if row["mode"] == "lockstep":
            assert row["speedup_over_lockstep"] == 1


def test_both_oracles_are_references(replay: Command) -> None:
    rows = {row["mode"]: row for row in json.loads(replay("--json").result)}
    assert set(rows) == set(MODES)
    for mode in ("oracle", "oracle_values"):
        for row in rows.values():
            share = rows[mode]["makespan_sim_s"] / row["makespan_sim_s"]
            assert row[f"share_of_{mode}"] == pytest.approx(share)


def test_instances_follow_the_rules_of_an_engine(replay: Command) -> None:
    options = ("--modes", "lockstep,critical_path", "--json", "--engine-rules")
    lockstep_sim_s = {}
    for rules in ("vllm", "vllm-v0"):
        rows = json.loads(replay(*options, rules).result)
        lockstep_sim_s[rules] = rows[0]["makespan_sim_s"]
    assert rows[0]["fleet"].endswith(", rules of vllm-v0")
    assert lockstep_sim_s["vllm"] != lockstep_sim_s["vllm-v0"]


def test_instances_may_differ(replay: Command) -> None:
    fleet = ("--instance", "llama-3-8b/l4", "--instance", "llama-3-8b/h100:2")
    rows = json.loads(replay(*fleet, "--json").result)
    assert {row["mode"] for row in rows} == set(MODES) - {"no_dependency", "optimistic"}
    assert {row["fleet"] for row in rows} == {"1 x llama-3-8b/l4 + 2 x llama-3-8b/h100"}
    assert {(row["instances"], row["profile"]) for row in rows} == {
        (3, "llama-3-8b/l4,llama-3-8b/h100")
    }
    assert all(row["speedup_over_lockstep"] for row in rows)


def test_the_table_names_every_mode_and_fits_80_columns(replay: Command) -> None:
    lines = replay("--instances", "8").result.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    for mode in MODES:
        assert any(line.startswith(mode) for line in lines)


def test_without_speculation_optimistic_takes_as_long_as_versioned(replay: Command) -> None:
    modes = ("--modes", "versioned,optimistic", "--json")
    makespans = {}
    for risk in ("off", "auto", "1"):
        versioned, optimistic = json.loads(replay(*modes, "--speculation", risk).result)
        assert optimistic["waste"] == optimistic["wasted_calls"] / (
            optimistic["calls"] + optimistic["wasted_calls"]
        )
        assert versioned["wasted_calls"] == 0
        makespans[risk] = optimistic["makespan_sim_s"]
    assert makespans["off"] == versioned["makespan_sim_s"]
    assert makespans["1"] != makespans["off"]


def test_a_figure_that_cannot_be_written_is_named(replay: Command, tmp_path: Path) -> None:
    (tmp_path / "calls_per_hour.svg").mkdir()
    refusal = replay("--modes", "lockstep", "--figures", tmp_path).refusal
    assert f"{tmp_path / 'calls_per_hour.svg'}: cannot be written: " in refusal
    for option in ("--figures", "--record"):
        assert "it is empty; it should be the path of a folder" in replay(option, "").refusal


def test_figures_are_pictures(replay: Command, tmp_path: Path) -> None:
    assert replay("--figures", tmp_path / "new" / "figures").result
    for name in ("gantt", "calls_per_hour", "completion_times"):
        picture = tmp_path / "new" / "figures" / f"{name}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert "<svg" in picture.with_suffix(".svg").read_text()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--modes", "locked"), "'locked' is not one of sequential, lockstep"),
        (("--speculation", "1.5"), "'1.5' is not off, auto or a number from 0 to 1"),
        (("--speculation", "nan"), "'nan' is not off, auto or a number from 0 to 1"),
        (("--modes", "lockstep", "--speculation", "off"), "--speculation is for the mode opti"),
        (("--modes", "optimistic", "--policy", "atlas"), "the policy step or fcfs, no disp"),
        (("--modes", "optimistic", "--dispatcher", "kairos"), "optimistic needs equal instances"),
        (("--modes", "oracle_values", "--agents", "2"), "oracle_values needs a trace with dep"),
        (("--instances", "0"), "'0' is not a whole number"),
        (("--instances", "²"), "is not a whole number"),
        (("--instances", ","), "is empty"),
        (("--agents", "7"), "7 is more than the 6 agents of the trace"),
        (("--hours", "noon"), "'noon' is not a stretch of hours; write it like 12-13"),
        (("--hours", "2-1"), "2-1 ends before it begins"),
        (("--hours", "3-4"), "not within the trace"),
        (("--hours", "0-0.0001"), "shorter than a step"),
        (("--radius", "nan"), "nan is not a number from 0"),
        (("--velocity", "0.5"), "a move should be at most max_velocity = 0.5"),
        (("--metric", "geodesic"), "the metric geodesic needs a map"),
        (("--metric", "manhattan"), "a manhattan distance of 2"),
        (("--profile", "gpt"), "there is no profile 'gpt'"),
        (("--instance", "gpt:2"), "there is no profile 'gpt'"),
        (("--instance", "llama-3-8b/l4:x"), "write PROFILE, PROFILE:COUNT or"),
        (
            ("--instance", "llama-3-8b/l4", "--instances", "2"),
            "--instance lists the whole fleet; omit --instances",
        ),
        (("--figures", __file__), "is a file"),
        (("--policy", "nope", *BOUNDS), "'nope' is not among the policies: atlas, fcfs"),
        (("--policy", "step:bucket=0", *BOUNDS), "bucket is 0; it should be at least 1"),
        (("--policy", "step", "--policy", "topology"), "'topology' is not for replays"),
        (("--policy", "step+topology", *BOUNDS), "'step+topology' is not for replays"),
        (("--dispatcher", "nope", *BOUNDS), "'nope' is not among the dispatchers: agentix"),
        (("--wrong",), "No such option"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    replay: Command, options: tuple[str, ...], sentence: str
) -> None:
    said = replay(*options)
    assert said.out == ""
    assert re.fullmatch(r"metropolis: [^\n]*\n", said.refusal)
    assert sentence in said.err


def test_a_call_that_fits_no_instance_is_named(replay: Command, tmp_path: Path) -> None:
    tiny = tmp_path / "tiny.toml"
    tiny.write_text(
        '[gpu]\nestimate = true\nsource = "made up"\nkv_source = "made up"\n'
        "w_ms = 1\ng_ms = 1\nh_ms = 1\nb_ms = 1\nk_ms = 1\nq_ms = 1\nc_ms = 1\n"
        "kv_capacity_tokens = 64\n"
    )
    error = replay("--profile", tiny).refusal
    assert re.search(r"step \d+, agent 'agent \d': a call of \d+ prompt", error)
    assert "holds 64 KV tokens" in error


def test_wrong_names_leave_nothing_behind(replay: Command, tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    assert "nope" in replay("--policy", "nope", "--figures", figures).refusal
    assert not figures.exists()
