"""`metropolis show` from the command line."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import Run, summary


def test_an_agent_is_shown_at_a_step(run: Run, uninterrupted: dict[str, Any]) -> None:
    shown = summary(run, "show", "uninterrupted", "--agent", "w01", "--at", "9")
    assert (shown["agent"], shown["step"]) == ("w01", 9)
    assert {"body", "mind"} <= shown.keys()
    status, out, _ = run("show", "uninterrupted", "--agent", "w01")
    assert (status, out.startswith("w01 at step 24")) == (0, True)


def test_bad_input_is_one_sentence(run: Run, uninterrupted: dict[str, Any]) -> None:
    for arguments, sentence in (
        (("uninterrupted", "--agent", "w1"), "no agent 'w1' (did you mean"),
        (("uninterrupted", "--agent", "w01", "--at", "25"), "has 24 recorded steps"),
        (("nowhere", "--agent", "w01"), "holds no run"),
    ):
        status, out, err = run("show", *arguments)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert sentence in err
