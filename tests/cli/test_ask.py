"""`metropolis ask` from the command line."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import summary
from tests.commands import Command

QUESTION = "What do you know about Ada Whitlock's novel?"


def contents(folder: Path) -> Mapping[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {f"{path}": sha256(path.read_bytes()).hexdigest() for path in files}


def test_an_interview_changes_nothing_and_can_be_repeated(run: Command) -> None:
    assert run("smallville", "--agents", "3", "--steps", "400", "--quiet", "--out", "town")[0] == 0
    before = contents(Path("town"))
    ask = ("ask", "town", QUESTION, "--agent", "Celia Marsh", "--at", "399")
    first, second = summary(run, *ask), summary(run, *ask)
    assert first == second
    assert (first["agent"], first["step"], first["question"]) == ("Celia Marsh", 399, QUESTION)
    assert contents(Path("town")) == before
    idle = summary(run, "ask", "town", "Xylophone?", "--agent", "Celia Marsh", "--at", "0")
    assert idle["answer"].endswith("At present: sleeping.")
    status, out, _ = run(*ask)
    assert (status, out.startswith("Celia Marsh at step 399")) == (0, True)


def test_residents_of_further_towns_answer_with_their_own_names(run: Command) -> None:
    steps = ("--agents", "27", "--steps", "2", "--quiet", "--out", "towns")
    assert run("largeville", *steps)[0] == 0
    _, _, err = run("ask", "towns", "Who?", "--agent", "nobody")
    second_ada = err.strip().split(", ")[-2]
    question = "What has been whistling all week?"
    answer = summary(run, "ask", "towns", question, "--agent", second_ada)["answer"]
    assert "whistling all week" in answer
    assert "Ada" not in answer
    assert "Nils" not in answer
    _, _, err = run("ask", "towns", question, "--agent", second_ada, "--at", "3")
    assert "has 2 recorded steps" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("uninterrupted", "Who?", "--agent", "w1"), "no agent 'w1' (did you mean"),
        (
            ("uninterrupted", "Who?", "--agent", "w01"),
            "agents of this world answer no interviews: Walker.interview is not defined",
        ),
        (("uninterrupted", " ", "--agent", "w01"), "the question is empty"),
        (("uninterrupted", "Who?", "--agent", "w01", "--llm", "me"), "'me' names no LLM"),
        (("nowhere", "Who?", "--agent", "w01"), "holds no run"),
    ],
)
def test_bad_input_is_one_sentence(
    run: Command, uninterrupted: dict[str, Any], arguments: tuple[str, ...], sentence: str
) -> None:
    status, out, err = run("ask", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert sentence in err
