"""`metropolis show` from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cli.conftest import summary
from tests.commands import Command


def test_an_agent_is_shown_at_a_step(run: Command, uninterrupted: dict[str, Any]) -> None:
    shown = summary(run, "show", "uninterrupted", "--agent", "w01", "--at", "9")
    assert (shown["agent"], shown["step"]) == ("w01", 9)
    assert {"body", "mind"} <= shown.keys()
    status, out, _ = run("show", "uninterrupted", "--agent", "w01")
    assert (status, out.startswith("w01 at step 24")) == (0, True)


def test_a_resident_is_shown_as_tables(run: Command) -> None:
    steps = ("--agents", "6", "--steps", "400", "--quiet", "--out", "town")
    assert run("smallville", *steps)[0] == 0
    show = ("show", "town", "--agent", "Celia Marsh", "--at", "390")
    mind = summary(run, *show)["mind"]
    out = run(*show).result
    for title in ("body", "state of the body", "present", "schedule", "relations", "memories: "):
        assert f"\n{title}" in out
    shown = " ".join(out.split())
    assert " in Willow Lodge: " in shown
    assert mind["goal"][:60] in shown
    for name in {*mind["profile"]["relations"], *mind["talked"]}:
        assert name in out
    for entry in mind["day"]["hours"]:
        assert entry["what"] in shown
    newest = max(mind["memory"]["nodes"], key=lambda node: node["created_s"])
    assert newest["text"][:40] in shown


def test_tables_of_an_own_world(run: Command) -> None:
    source = Path("meadow.py").read_text("utf-8")
    source += """
class Walker(Walker):
    def tables(self):
        return TABLES
"""
    for name, tables, status, sentence in (
        ("empty", "{'sights': [], 'sounds': []}", 0, "\n  sights: none\n  sounds: none\n"),
        (
            "letters",
            "{'sights': [{'what': 'a [red]fox\\x1b[0m'}, {'where': 'here'}]}",
            0,
            "[red]fox",
        ),
        ("broken", "[][1]", 2, "own.py:"),
    ):
        Path("own.py").write_text(source.replace("TABLES", tables), "utf-8")
        assert run("own.py", "--out", name, "--quiet")[0] == 0
        found, out, err = run("show", name, "--agent", "w01")
        assert found == status
        assert sentence in out + err
        assert "\x1b" not in out


def test_an_agent_that_cannot_be_copied_is_named(run: Command) -> None:
    source = Path("meadow.py").read_text("utf-8")
    source += """
from dataclasses import dataclass, field
from threading import Lock
@dataclass
class Walker(Walker):
    _lock: object = field(default_factory=Lock)
"""
    Path("locked.py").write_text(source, "utf-8")
    assert run("locked.py", "--out", "locked", "--quiet")[0] == 0
    for command in (
        ("show", "locked", "--agent", "w01", "--at", "3"),
        ("fork", "locked", "--at", "3", "--out", "branch"),
        ("locked.py", "--store", "embedded", "--workers", "2", "--out", "stored"),
    ):
        err = run(*command).refusal
        assert "' (Walker) cannot be copied (cannot pickle" in err
    status, out, _ = run("world", "check", "locked.py")
    assert status == 1
    assert "' (Walker) cannot be copied (cannot pickle" in " ".join(out.split())
    assert not Path("branch").exists()


def test_bad_input_is_one_sentence(run: Command, uninterrupted: dict[str, Any]) -> None:
    for arguments, sentence in (
        (("uninterrupted", "--agent", "w1"), "no agent 'w1' (did you mean"),
        (("uninterrupted", "--agent", "w01", "--at", "25"), "has 24 recorded steps"),
        (("nowhere", "--agent", "w01"), "holds no run"),
    ):
        status, out, err = run("show", *arguments)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert sentence in err
