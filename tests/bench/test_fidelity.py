"""Sensitivity and predictions of `metropolis bench fidelity`."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner

from metropolis.bench import fidelity, instances
from metropolis.bench._sensitivity import CHANGES, STATISTICS
from metropolis.sim.profiles import load_profile

PROFILE = "llama-3-8b/rtx-pro-6000"


def test_a_queue_amplifies_an_error_of_the_costs(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    rows = [f"{n * 0.05},800,200,{n * 0.05 + 1},{n * 0.05 + 9}" for n in range(300)]
    header = "queued_s,input_tokens,output_tokens,first_token_s,last_token_s"
    path.write_text("\n".join([header, *rows]))
    arguments = [str(path), "--profile", PROFILE, "--max-sequences", "64"]
    output = CliRunner().invoke(fidelity.command, [*arguments, "--json"], catch_exceptions=False)
    result = json.loads(output.output)

    changes = result["sensitivity"]
    assert list(changes) == [*CHANGES, "rules of vllm-v0", "rules of sglang"]
    assert all(list(row) == list(STATISTICS) for row in changes.values())
    for name, sign in (("all costs +5 %", 1), ("all costs -5 %", -1)):
        assert sign * changes[name]["ttft_mean_s"] > 0.07
        assert sign * changes[name]["tpot_mean_s"] == pytest.approx(0.05, abs=0.01)
    assert changes["CPU +1 ms per iteration"]["ttft_mean_s"] > 0
    assert set(changes["KV capacity -5 %"].values()) == {0}, "the KV memory is never full"
    assert (
        changes["max_sequences x 2"]["ttft_mean_s"]
        < 0
        < changes["max_sequences / 2"]["ttft_mean_s"]
    )

    cards = {row["profile"]: row for row in result["predictions"]}
    assert PROFILE not in cards
    assert cards["llama-3-8b/l4"]["estimate"]
    assert "RTX 4090" in cards["llama-3-8b/rtx-4090"]["source"]
    own = CliRunner().invoke(
        fidelity.command,
        [str(path), "--profile", "llama-3-8b/a100", "--max-sequences", "64", "--json"],
    )
    simulated = json.loads(own.output)["metrics"]["ttft_mean_s"]["simulated"]
    assert cards["llama-3-8b/a100"]["seconds"]["ttft_mean_s"] == simulated
    assert load_profile("llama-3-8b/a100").max_sequences != 64

    rules = CliRunner().invoke(fidelity.command, [*arguments, "--engine-rules", "sglang", "--json"])
    of_sglang = json.loads(rules.output)
    assert (of_sglang["chunk_tokens"], of_sglang["max_sequences"]) == (8192, 64)
    assert (result["chunk_tokens"], result["engine_rules"]) == (2048, "vllm")
    before, after = (each["metrics"]["ttft_mean_s"]["simulated"] for each in (result, of_sglang))
    assert changes["rules of sglang"]["ttft_mean_s"] == after / before - 1
    assert of_sglang["sensitivity"]["rules of vllm"]["ttft_mean_s"] == before / after - 1

    table = CliRunner().invoke(fidelity.command, arguments).output
    assert "all costs +5 %" in table
    assert "rests on" in table


def test_one_request_and_the_name_of_a_profile_are_printed_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(
        "queued_s,input_tokens,output_tokens,first_token_s,last_token_s\n"
        "0,500,20,0.2,0.8\n0.5,300,0,0.7,0.7\n"
    )
    profile = tmp_path / "[" / "b].toml"
    profile.parent.mkdir()
    profile.write_text((files("metropolis.sim") / "profiles" / "llama-3-8b.toml").read_text())
    arguments = ["--profile", f"{profile}/l4"]
    table = (
        CliRunner().invoke(fidelity.command, [str(path), *arguments], catch_exceptions=False).output
    )
    assert "[/b].toml" in "".join(table.split())
    assert "1 request on " in table
    assert "1 request without output" in table
    options = ["--requests", "10", "--repeats", "1", *arguments]
    table = CliRunner().invoke(instances.command, options, catch_exceptions=False).output
    assert "[/b].toml" in "".join(table.split())
