"""`metropolis bench droidspeak`: its sections, in their quick form."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from metropolis.bench.droidspeak import SECTIONS, command
from metropolis.bench.droidspeak.paper import PAIRS
from metropolis.bench.droidspeak.simulate import Cluster, at_rate, most_per_s, serve
from metropolis.trace.generate.histories import BASE, CHAT, workload


@pytest.fixture(scope="module")
def sections() -> dict[str, Any]:
    result = CliRunner().invoke(command, ["--quick", "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["sections"].keys() == SECTIONS.keys()
    return {name: section["rows"] for name, section in found["sections"].items()}


def test_every_title_says_what_is_simulated(sections: dict[str, Any]) -> None:
    for name, rows in sections.items():
        console = Console(record=True, file=StringIO(), width=110)
        SECTIONS[name].show(rows, console)
        text = console.export_text()
        assert text.strip().startswith(SECTIONS[name].KIND.capitalize()), text
        assert "…" not in text, text


def test_a_prefill_is_as_much_faster_as_the_plan_says(sections: dict[str, Any]) -> None:
    (row,) = sections["prefill"]
    pair = PAIRS[3]
    assert row["receiver"] == pair.receiver
    # the last token, the link and each iteration take time as well
    assert 0.9 / pair.plan().points[0].prefill_share < row["speedup"]
    assert row["speedup"] < 1 / pair.plan().points[0].prefill_share
    assert row["rate_ratio"]["1.5"] > row["saturated_ratio"] > 1.5


def test_own_caches_find_nothing_where_nothing_repeats(sections: dict[str, Any]) -> None:
    none, prefix, droidspeak = sections["load"]
    assert [row["reuse"] for row in (none, prefix, droidspeak)] == ["none", "prefix", "droidspeak"]
    assert none | {"reuse": ""} == prefix | {"reuse": ""}
    assert droidspeak["ttft_mean_s"] < prefix["ttft_mean_s"]
    assert droidspeak["reused_share"] > 0.45


def test_a_slow_link_costs_more_without_overlap(sections: dict[str, Any]) -> None:
    slow, fast = sections["links"]
    assert slow["in_turn_s"] > slow["overlapped_s"] >= fast["overlapped_s"]
    assert slow["in_turn_s"] - slow["overlapped_s"] > fast["in_turn_s"] - fast["overlapped_s"]


def test_inputs_take_room(sections: dict[str, Any]) -> None:
    without, kept = sections["inputs"]
    share = kept["share_left"]["llama-3-8b/a100"]
    assert share == pytest.approx(131_072 / (131_072 + 8 * 8192), abs=1e-4)
    assert set(without["share_left"].values()) == {1.0}


def test_nothing_saves_more_than_free_prefills(sections: dict[str, Any]) -> None:
    found = {row["reuse"]: row for row in sections["smallville"] if "reuse" in row}
    makespans = [found[name]["makespan_sim_s"] for name in ("free", "exact", "prefix", "none")]
    assert makespans == sorted(makespans)
    assert found["exact"]["reused_share"] >= found["droidspeak"]["reused_share"] > 0
    for row in sections["smallville"]:
        if "model" in row and row["prompt_tokens"]:
            assert row["base_share"] - row["own_share"] <= row["beyond_share"]
            assert row["beyond_share"] <= row["base_share"]


def test_a_section_alone() -> None:
    result = CliRunner().invoke(command, ["--quick", "--only", "links"])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("Simulated:") == 1
    wrong = CliRunner().invoke(command, ["--only", "link"])
    assert wrong.exit_code == 2


def test_the_highest_rate_is_that_of_the_limit() -> None:
    drawn = workload("documents", 25, 1.0, 1)
    cluster = Cluster({BASE: 2, CHAT: 1}, "prefix")
    limit_s = 1.5 * serve(at_rate(drawn, 0.001), cluster).ttft_mean_s
    rate = most_per_s(drawn, cluster, limit_s, 4.0)
    assert serve(at_rate(drawn, rate), cluster).ttft_mean_s <= limit_s
    assert serve(at_rate(drawn, rate + 4.0 / 512), cluster).ttft_mean_s > limit_s
    assert most_per_s(drawn, cluster, 1e-6, 4.0) == 0.0
