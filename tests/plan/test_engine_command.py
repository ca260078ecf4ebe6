"""Command templates of engines, their environment, and the estimate of the time left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from metropolis.plan.application_file import EngineTable
from metropolis.plan.running.engine_command import (
    KINDS,
    EngineCommand,
    EngineCommandError,
    check_startable,
    engine_commands,
    environment_of,
)
from metropolis.plan.running.folder import FORMAT, VERSION, NodeRecord, RunRecord
from metropolis.plan.running.time_left import time_left_s
from tests.plan.small_runs import schedule


def test_a_template_is_filled_in_word_by_word() -> None:
    template = "serve 'a b' --name={model} {path} --port {port} --tp {tp} --on {gpus}"
    command = EngineCommand("m", template, "/models/my model")
    assert command.arguments(80, (2, 3)) == [
        "serve", "a b", "--name=m", "/models/my model", "--port", "80", "--tp", "2", "--on", "2,3",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_starts_a_command_of_ours(kind: str) -> None:
    arguments = EngineCommand("m", kind, "folder").arguments(80, (0,))
    assert arguments[0] == "metropolis"
    assert "80" in arguments


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("serve {prot}", r"has {prot} \(did you mean 'port'\?\); it may have {model}"),
        ("serve", "lacks {port}"),
        ("stubb", "or one of sglang, torch, stub"),
        ("serve '{port}", "No closing quotation"),
        ("serve {port", "expected '}'"),
        ("", "lacks {port}"),
        ("serve {port:zz}", "has a format or conversion in a field"),
        ("serve {port!x}", "has a format or conversion in a field"),
        ("serve {port}\0", "has a NUL character"),
        ("serve {port} \udcff", "or the name of a folder that is not UTF-8"),
        ("serve {port:{foo}}", "has a format or conversion in a field"),
    ],
)
def test_a_bad_template_is_one_sentence(template: str, sentence: str) -> None:
    with pytest.raises(EngineCommandError, match=sentence):
        EngineCommand("m", template, "m")


def test_tables_give_commands_and_paths(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    tables = {"m": EngineTable("torch", "folder"), "n": EngineTable("stub")}
    found = engine_commands(("m", "n"), tables, tmp_path, None)
    assert found["m"] == EngineCommand("m", "torch", str(tmp_path / "folder"))
    assert found["n"] == EngineCommand("n", "stub", "n")
    assert engine_commands(("m",), tables, tmp_path, "stub")["m"].template == "stub"
    with pytest.raises(EngineCommandError, match="no command starts engines of o; write"):
        engine_commands(("o",), tables, tmp_path, None)


@pytest.mark.parametrize(
    ("visible", "gpus", "devices"),
    [
        (None, (0, 1), "0,1"),
        ("4,6,5", (1, 2), "6,5"),
        ("GPU-a,GPU-b", (1,), "GPU-b"),
        ("", (3,), ""),
        ("-1", (3,), "-1"),
        (" 4, 6,-1,5", (1,), "6"),
    ],
)
def test_an_engine_sees_its_own_devices(
    visible: str | None, gpus: tuple[int, ...], devices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    environment = environment_of(gpus)
    assert environment["CUDA_VISIBLE_DEVICES"] == devices
    assert environment["HOME"] == os.environ["HOME"]


def test_missing_devices_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    with pytest.raises(EngineCommandError, match="has GPU 2, but CUDA_VISIBLE_DEVICES=4,6"):
        environment_of((2,))


def test_engines_are_checked_before_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of all stages are checked, also of those that start later."""
    commands = [EngineCommand(name, f"{name} {{port}}", "") for name in ("sh", "no-such")]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    check_startable(commands[:1], 4)
    with pytest.raises(EngineCommandError, match=r"'no-such', the command of .* is not a program"):
        check_startable(commands, 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    check_startable(commands[:1], 3)
    with pytest.raises(EngineCommandError, match="has GPU 3, but"):
        check_startable(commands[:1], 4)


def test_the_time_left_is_the_plans_at_first_and_follows_the_speed() -> None:
    planned = schedule({"one": ((0,),)}, {"two": ((0,), (1,), (2,))})  # 1 and 3 GPU seconds
    nodes = {name: NodeRecord("m", 10) for name in ("one", "two")}
    record = RunRecord(FORMAT, VERSION, "a", "", planned, planned, 0.0, nodes)
    none = {"one": 0, "two": 0}
    assert time_left_s(record, 0.0, none) == planned.ends_s == 2.0
    assert time_left_s(record, 4.0, none) > 20  # nothing has been done
    nodes["one"].answered = 10  # a quarter of the work
    assert time_left_s(record, 0.5, none) == pytest.approx(1.5)  # as fast as planned
    assert 2.5 < time_left_s(record, 1.0, none) < 3.0  # half as fast
    assert time_left_s(record, 0.0, {"one": 10, "two": 0}) == pytest.approx(1.5)  # continued
    nodes["two"].answered = 10
    assert time_left_s(record, 5.0, none) == 0.0
