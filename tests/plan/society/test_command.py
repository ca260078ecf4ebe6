"""`metropolis plan society` from the command line."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from metropolis.cli import main
from metropolis.trace.parquet import write_trace
from tests.plan.society.test_search import long_halves

MODELS = ("--model", "plan=vicuna-13b,converse=chatglm3-6b")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "town.parquet"
    write_trace(long_halves(), path)
    return str(path)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["metropolis", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    return int(exited.value.code or 0)


def test_tables_and_json_tell_the_same_plans(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*MODELS, "--gpus", "4", "--phases", "2", "--replays", "20")
    assert run(monkeypatch, "plan", "society", trace, *options) == 0
    table = capsys.readouterr().out
    assert run(monkeypatch, "plan", "society", trace, *options, "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert table.startswith("Simulated: 6 agents")
    assert content["simulated"]
    assert content["best"] == "changing"
    assert "The fastest is: changing." in table
    assert [each["name"] for each in content["plans"]] == ["even", "fixed", "changing"]
    for each in content["plans"]:
        assert f"{each['makespan_sim_s']:,.0f}" in table


@pytest.mark.parametrize("more", [(), ("--mode", "lockstep", "--hours", "0-0.1")])
def test_the_command_that_is_told_replays_the_one_allocation(
    more: tuple[str, ...],
    trace: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = (*MODELS, "--gpus", "4", "--phases", "2", "--replays", "20", *more)
    assert run(monkeypatch, "plan", "society", trace, *options) == 0
    command = capsys.readouterr().out.partition("one allocation: metropolis ")[2]
    assert run(monkeypatch, "plan", "society", trace, *options, "--json") == 0
    expected = json.loads(capsys.readouterr().out)["plans"][1]["makespan_sim_s"]
    assert run(monkeypatch, *shlex.split(command), "--json") == 0
    (replayed,) = json.loads(capsys.readouterr().out)
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
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    assert run(monkeypatch, "plan", "society", trace, *options) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
