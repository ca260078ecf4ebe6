"""`metropolis plan society` from the command line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from metropolis.trace.parquet import write_trace
from tests.commands import Command
from tests.plan.society.test_search import long_halves

MODELS = ("--model", "plan=vicuna-13b,converse=chatglm3-6b")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "my town.parquet"
    write_trace(long_halves(), path)
    return str(path)


def test_tables_and_json_tell_the_same_plans(metropolis: Command, trace: str) -> None:
    words = ("plan", "society", trace, *MODELS, "--gpus", "4", "--phases", "2", "--replays", "20")
    table = metropolis(*words).result
    content = json.loads(metropolis(*words, "--json").result)
    assert table.startswith("Simulated: 6 agents")
    assert content["simulated"]
    assert content["best"] == "changing"
    assert "The fastest is: changing." in table
    assert [each["name"] for each in content["plans"]] == ["even", "fixed", "changing"]
    for each in content["plans"]:
        assert f"{each['makespan_sim_s']:,.0f}" in table


@pytest.mark.parametrize("more", [(), ("--mode", "lockstep", "--hours", "0-0.1")])
def test_the_command_that_is_told_replays_the_one_allocation(
    metropolis: Command, trace: str, more: tuple[str, ...]
) -> None:
    options = (*MODELS, "--gpus", "4", "--phases", "2", "--replays", "20", *more)
    told = metropolis("plan", "society", trace, *options).result
    replay = told.partition("one allocation: metropolis ")[2]
    content = json.loads(metropolis("plan", "society", trace, *options, "--json").result)
    expected = content["plans"][1]["makespan_sim_s"]
    (replayed,) = json.loads(metropolis(*shlex.split(replay), "--json").result)
    assert replayed["makespan_sim_s"] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--phases", "0"), "'0' is not auto or a whole number from 1 to 24"),
        (("--phases", "many"), "'many' is not auto or a whole number from 1 to 24"),
        (("--gpu", "a100"), "did you mean 'a100-80g'"),
        (("--hours", "7-9"), "is not within the trace"),
        (("--model", "llama-3-70b", "--gpus", "1"), "1 x a100-80g cannot hold llama-3-70b"),
    ],
)
def test_bad_options_get_a_sentence(
    metropolis: Command, trace: str, options: tuple[str, ...], message: str
) -> None:
    refusal = metropolis("plan", "society", trace, *options).refusal
    assert message in refusal.replace("\n", " ")
