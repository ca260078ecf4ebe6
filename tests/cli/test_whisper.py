"""`metropolis whisper` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.world.entities import Event
from tests.cli.conftest import summary
from tests.commands import Command

TEXT = "News: A hot-air balloon lands on Mill Green on Sunday."


def conversations(folder: str) -> list[Event]:
    """The conversations of a run."""
    directory = RunDirectory(Path(folder))
    directory.read()
    events = [event for record in directory.records(1000) for event in record.events]
    return [event for event in events if event.kind == "conversation"]


def heard(folder: str, text: str) -> set[str]:
    """Who took part in a conversation in which `text` was said."""
    return {
        name
        for event in conversations(folder)
        if text in json.dumps(event.data["lines"][:])
        for name in (event.source, event["partner"])
    }


def test_a_whisper_is_a_branch_in_which_it_can_be_passed_on(run: Command) -> None:
    assert run("smallville", "--agents", "16", "--steps", "600", "--quiet", "--out", "town")[0] == 0
    told = []
    for talk in conversations("town")[::-1]:
        name, at = talk.source, talk.step - 10
        branch = f"to {name} at {at}"
        whisper = ("whisper", "town", TEXT, "--agent", name, "--at", str(at), "--out", branch)
        (origin,) = summary(run, *whisper, "--replay-llm")["lineage"]
        assert (origin["step"], origin["edited"]) == (at, [name])
        assert TEXT in origin["edit"]
        shown = summary(run, "show", branch, "--agent", name, "--at", str(at))
        last = shown["mind"]["memory"]["nodes"][-1]
        assert (last["kind"], last["text"]) == ("thought", TEXT)
        told.append(name in heard(branch, "hot-air balloon"))
        if told[-1]:
            break
    assert told[-1]
    assert not heard("town", "hot-air balloon")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((TEXT, "--agent", "w1", "--at", "3"), "no agent 'w1' (did you mean"),
        ((" ", "--agent", "w01", "--at", "3"), "the whisper is empty"),
        ((TEXT, "--agent", "w01", "--at", "25"), "has 24 recorded steps"),
        ((TEXT, "--agent", "w01", "--at", "3"), "hear no whispers: Walker.whisper is not defined"),
        ((TEXT, "--agent", "w01"), "Missing option '--at'"),
    ],
)
def test_bad_input_is_one_sentence(
    run: Command, uninterrupted: dict[str, Any], arguments: tuple[str, ...], sentence: str
) -> None:
    status, out, err = run("whisper", "uninterrupted", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert sentence in err
    assert not list(Path("runs").glob("*"))
