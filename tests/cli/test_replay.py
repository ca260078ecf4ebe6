"""`metropolis replay` from the command line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from metropolis.cli import main
from metropolis.runtime.replays.modes import MODES
from metropolis.trace.parquet import write_trace
from tests.cli.conftest import OWN_POLICY
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
    write_trace(small_trace(5, agents=6, steps=12, edge=20, radius=2), path)
    return str(path)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["metropolis", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    return int(exited.value.code or 0)


def test_a_folder_of_a_run_and_the_mode_of_live_runs(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    Path(trace).rename(folder / "trace.parquet")
    options = ("--modes", "out_of_order", "--figures", str(tmp_path / "figures"))
    assert run(monkeypatch, "replay", str(folder), *options, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["mode"], row["rule"]) == ("out_of_order", "versioned")
    assert (tmp_path / "figures" / "gantt.svg").exists()
    assert run(monkeypatch, "replay", str(folder), *options[:2]) == 0
    assert "\nout_of_order " in capsys.readouterr().out


def test_a_policy_in_a_file_of_ones_own(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN_POLICY)
    policies = (f"{own}:Mine", f"{own}:Mine:base=5", f"step+{own}:Mine")
    given = [part for policy in policies[:2] for part in ("--policy", policy)]
    assert run(monkeypatch, "replay", trace, "--modes", "versioned", *given, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in rows] == list(policies[:2])
    assert run(monkeypatch, "replay", trace, "--policy", f"{own}:Mine:bose=5") == 2
    assert "own.py:Mine has no option 'bose'; its options: base" in capsys.readouterr().err
    assert run(monkeypatch, "replay", trace, "--policy", policies[2]) == 2
    assert "which leaves too few for the policies before it" in capsys.readouterr().err


def test_bounds_alone_are_not_recorded(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "replay", trace, *BOUNDS, "--record", str(tmp_path / "to")) == 2
    assert "show executions, and all of --modes are bounds" in capsys.readouterr().err
    assert not (tmp_path / "to").exists()


def test_outputs_tell_the_settings(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    placed = ("--modes", "versioned", "--dispatcher", "prefix", "--prefix-reuse")
    risk = ("--modes", "versioned,optimistic", "--speculation", "0.1", "--radius", "3")
    for options, told in (
        (placed, "policy step, dispatcher prefix, prefix reuse; chebyshev"),
        (risk, "policy step; chebyshev metric, radius 3, velocity 1, speculation 0.1."),
    ):
        assert run(monkeypatch, "replay", trace, *options) == 0
        assert told in capsys.readouterr().out.replace("\n", " ").replace("  ", " ")
    assert run(monkeypatch, "replay", trace, *risk, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["speculation"] for row in rows] == [None, "0.1"]
    assert {(row["perception_radius"], row["max_velocity"]) for row in rows} == {(3, 1)}


def test_the_queueing_of_calls(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--modes", "sequential,no_dependency", "--policy", "step", "--policy", "kairos")
    assert run(monkeypatch, "replay", trace, *options, "--json") == 0
    for row in json.loads(capsys.readouterr().out):
        values = [row[f"queueing_{name}_sim_s"] for name in ("mean", "p50", "p99")]
        expected = [None] * 3 if row["mode"] == "no_dependency" else pytest.approx([0.0] * 3)
        assert values == expected, row["mode"]
    assert run(monkeypatch, "replay", trace, *options) == 0
    printed = capsys.readouterr().out
    assert len(re.findall(r"queueing of calls, sim_s +mean +p50 +p99", printed)) == 2
    assert len(re.findall(r"sequential +0\.00 +0\.00 +0\.00", printed)) == 2


def test_figures_without_matplotlib_are_refused_before_any_work(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    assert run(monkeypatch, "replay", trace, "--figures", str(tmp_path / "figures")) == 2
    told = capsys.readouterr()
    assert (told.out, "figures need matplotlib" in told.err) == ("", True)
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
    trace: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    where = (trace,) if arguments[0] == "replay" else ()
    assert run(monkeypatch, *arguments, *where) == 2
    assert sentence in capsys.readouterr().err


def test_json_has_a_row_for_every_mode_and_setting(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (
        "--instances",
        "1,3",
        "--policy",
        "step",
        "--policy",
        "fcfs",
        "--agents",
        "2,6",
        "--json",
    )
    assert run(monkeypatch, "replay", trace, *options) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == (len(MODES) - 1) * 2 * 2 * 2  # two of six agents lack dependencies by value
    for row in rows:
        assert set(row) >= FIELDS
        assert row["simulated"] is True
        if row["mode"] == "lockstep":
            assert row["speedup_over_lockstep"] == 1


def test_both_oracles_are_references(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "replay", trace, "--json") == 0
    rows = {row["mode"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == set(MODES)
    for mode in ("oracle", "oracle_values"):
        for row in rows.values():
            share = rows[mode]["makespan_sim_s"] / row["makespan_sim_s"]
            assert row[f"share_of_{mode}"] == pytest.approx(share)


def test_instances_follow_the_rules_of_an_engine(
    trace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--modes", "lockstep,critical_path", "--json", "--engine-rules")
    lockstep_sim_s = {}
    for rules in ("vllm", "vllm-v0"):
        assert run(monkeypatch, "replay", trace, *options, rules) == 0
        rows = json.loads(capsys.readouterr().out)
        lockstep_sim_s[rules] = rows[0]["makespan_sim_s"]
    assert rows[0]["fleet"].endswith(", rules of vllm-v0")
    assert lockstep_sim_s["vllm"] != lockstep_sim_s["vllm-v0"]


def test_instances_may_differ(
    trace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = ("--instance", "llama-3-8b/l4", "--instance", "llama-3-8b/h100:2")
    assert run(monkeypatch, "replay", trace, *fleet, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["mode"] for row in rows} == set(MODES) - {"no_dependency", "optimistic"}
    assert {row["fleet"] for row in rows} == {"1 x llama-3-8b/l4 + 2 x llama-3-8b/h100"}
    assert {(row["instances"], row["profile"]) for row in rows} == {
        (3, "llama-3-8b/l4,llama-3-8b/h100")
    }
    assert all(row["speedup_over_lockstep"] for row in rows)


def test_the_table_names_every_mode_and_fits_80_columns(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "replay", trace, "--instances", "8") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    for mode in MODES:
        assert any(line.startswith(mode) for line in lines)


def test_without_speculation_optimistic_takes_as_long_as_versioned(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    modes = ("--modes", "versioned,optimistic", "--json")
    makespans = {}
    for risk in ("off", "auto", "1"):
        assert run(monkeypatch, "replay", trace, *modes, "--speculation", risk) == 0
        versioned, optimistic = json.loads(capsys.readouterr().out)
        assert optimistic["waste"] == optimistic["wasted_calls"] / (
            optimistic["calls"] + optimistic["wasted_calls"]
        )
        assert versioned["wasted_calls"] == 0
        makespans[risk] = optimistic["makespan_sim_s"]
    assert makespans["off"] == versioned["makespan_sim_s"]
    assert makespans["1"] != makespans["off"]


def test_a_figure_that_cannot_be_written_is_named(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "calls_per_hour.svg").mkdir()
    assert run(monkeypatch, "replay", trace, "--modes", "lockstep", "--figures", str(tmp_path)) == 2
    assert f"{tmp_path / 'calls_per_hour.svg'}: cannot be written: " in capsys.readouterr().err
    for option in ("--figures", "--record"):
        assert run(monkeypatch, "replay", trace, option, "") == 2
        assert "it is empty; it should be the path of a folder" in capsys.readouterr().err


def test_figures_are_pictures(trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "replay", trace, "--figures", str(tmp_path / "new" / "figures")) == 0
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
    trace: str,
    options: tuple[str, ...],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, "replay", trace, *options) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"metropolis: [^\n]*\n", said.err)
    assert sentence in said.err


def test_a_call_that_fits_no_instance_is_named(
    trace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tiny = tmp_path / "tiny.toml"
    tiny.write_text(
        '[gpu]\nestimate = true\nsource = "made up"\nkv_source = "made up"\n'
        "w_ms = 1\ng_ms = 1\nh_ms = 1\nb_ms = 1\nk_ms = 1\nq_ms = 1\nc_ms = 1\n"
        "kv_capacity_tokens = 64\n"
    )
    assert run(monkeypatch, "replay", trace, "--profile", str(tiny)) == 2
    error = capsys.readouterr().err
    assert re.search(r"step \d+, agent 'agent \d': a call of \d+ prompt", error)
    assert "holds 64 KV tokens" in error


def test_wrong_names_leave_nothing_behind(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = tmp_path / "figures"
    assert run(monkeypatch, "replay", trace, "--policy", "nope", "--figures", str(figures)) == 2
    assert not figures.exists()
