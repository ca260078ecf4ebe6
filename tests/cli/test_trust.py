"""Run folders that another user wrote, or that were changed since."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from metropolis.cli.run_options import options_of
from tests.cli.conftest import summary
from tests.commands import Command
from tests.forgery import forge

HOSTILE = """
from pathlib import Path
Path("{marker}").touch()
raise SystemExit(7)
"""
COMMANDS = (
    ("resume", "there"),
    ("--resume", "there"),
    ("fork", "there", "--at", "3"),
    ("diff", "there", "uninterrupted"),
    ("diff", "uninterrupted", "there"),
)


def change(folder: str, edit: Callable[[dict[str, Any]], object]) -> None:
    forge(Path(folder) / "run.json", edit)


def files(folder: str) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.fixture
def hostile(uninterrupted: dict[str, Any], tmp_path: Path) -> Path:
    """Make the folder `there` name another world; return the file that this world creates."""
    marker = tmp_path / "hostile code has run"
    Path("hostile.py").write_text(HOSTILE.format(marker=marker))
    shutil.copytree("uninterrupted", "there")
    world = str(Path("hostile.py").resolve())
    change("there", lambda content: content["about"].update(world=world))
    return marker


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_what_a_changed_folder_names(
    run: Command, hostile: Path, command: tuple[str, ...]
) -> None:
    before = files("there")
    status, out, err = run(*command)
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert "there/run.json: has been changed since this user signed it; it names world '" in err
    assert "hostile.py', llm 'scripted'" in err
    assert "add --trust if you trust the whole folder" in err
    assert not hostile.exists()
    assert files("there") == before
    assert run(*command, "--trust")[0] != 0
    assert hostile.exists()


@pytest.mark.parametrize("command", [*COMMANDS, ("diff", "there", "uninterrupted", "--json")])
@pytest.mark.parametrize(
    ("was", "put"), [(b'"seed": 0,', b'"seed": 1,'), (b'"signature": "', b'"signature": "0')]
)
def test_nobody_can_trust_damage(
    run: Command, uninterrupted: dict[str, Any], command: tuple[str, ...], was: bytes, put: bytes
) -> None:
    shutil.copytree("uninterrupted", "there")
    file = Path("there/run.json")
    file.write_bytes(file.read_bytes().replace(was, put))
    before = files("there")
    status, out, err = run(*command, *(() if "--json" in command else ("--trust",)))
    assert (status, out) == (2, "")
    assert err == (
        f"metropolis: {file}: is damaged (its checksum does not fit); restore the file as the run "
        "wrote it\n"
    )
    assert files("there") == before


def test_a_file_without_a_checksum_is_damaged(run: Command, uninterrupted: dict[str, Any]) -> None:
    file = Path("uninterrupted/run.json")
    content = json.loads(file.read_text())
    del content["crc32"]
    file.write_text(json.dumps(content))
    status, _, err = run("resume", "uninterrupted", "--trust")
    assert (status, 'is damaged (it should begin with {"crc32":); restore' in err) == (2, True)


def test_comparing_as_json_runs_nothing(run: Command, hostile: Path) -> None:
    assert run("diff", "there", "uninterrupted", "--json")[0] == 0
    assert not hostile.exists()


def test_an_unsigned_folder_is_signed_once_it_is_trusted(
    run: Command, uninterrupted: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = uninterrupted["history_sha256"]
    assert summary(run, "resume", "uninterrupted")["history_sha256"] == whole
    Path("uninterrupted").rename("moved")
    assert summary(run, "resume", "moved")["history_sha256"] == whole
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "somebody else's"))
    status, _, err = run("resume", "moved")
    assert (status, "moved/run.json: cannot be checked (" in err) == (2, True)
    assert summary(run, "meadow.py", "--steps", "2", "--quiet")["steps"] == 2  # creates a key
    status, _, err = run("resume", "moved")
    assert (status, "signed with another user's or machine's key" in err) == (2, True)
    assert summary(run, "resume", "moved", "--trust")["history_sha256"] == whole
    assert summary(run, "resume", "moved")["history_sha256"] == whole


def test_without_a_key_every_run_must_be_trusted(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(Path("meadow.py").resolve()))
    summary(run, "meadow.py", "--steps", "2", "--out", "here")
    assert json.loads(Path("here/run.json").read_text())["signature"] is None
    err = run("resume", "here").refusal
    assert "here/run.json: is not signed (this user cannot sign: " in err
    assert "meadow.py is not a folder that can be written); it names" in err
    assert run("resume", "here", "--trust")[0] == 0


def test_what_is_named_does_not_reach_the_terminal_as_it_is(run: Command, hostile: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe\x9b1A\r" + "x" * 1000
    change("there", lambda content: content["about"].update(world=evil, store=evil, engine=[evil]))
    err = run("resume", "there")[2]
    assert r"\x1b]0;owned\x07\x1b[2J\u202egnp.exe\x9b1A\r" in err
    assert all(char.isprintable() or char == "\n" for char in err)
    assert len(err) < 2000
    change("there", lambda content: content.update(format=evil))
    assert "\x1b" not in run("resume", "there")[2]


def test_of_a_long_name_the_end_is_shown_and_no_password(run: Command, hostile: Path) -> None:
    address = f"http://{'u' * 150}:hunter2{'x' * 100}@h/{'y' * 300}/the-end"
    world = f"/safe/{'x' * 300}/evil.py"
    change("there", lambda content: content["about"].update(world=world, llm=address))
    err = run("resume", "there")[2]
    assert "world '/safe/xxx" in err
    assert "xxx/evil.py'" in err
    assert "llm 'http://***@h/yyy" in err
    assert "yyy/the-end'" in err
    assert "hunter" not in err
    change("there", lambda content: content["about"].update(llm="://:a" * 100_000))
    assert "llm (a text of 500,000 characters)" in run("resume", "there")[2]


def test_a_store_in_a_folder_is_the_same_wherever_the_run_is_resumed(
    run: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    summary(run, "meadow.py", "--steps", "2", "--store", "embedded:mine", "--out", "it")
    kept = json.loads(Path("it/run.json").read_text())["about"]["store"]
    assert kept == f"embedded:{tmp_path / 'mine'}"
    Path("else").mkdir()
    monkeypatch.chdir("else")
    assert summary(run, "resume", "../it", "--steps", "4")["steps"] == 4
    assert not Path("mine").exists()


@pytest.mark.parametrize("store", ["embedded", "embedded:it/mine"])
def test_a_store_in_the_folder_of_the_run_is_copied_with_it(run: Command, store: str) -> None:
    summary(run, "meadow.py", "--steps", "2", "--store", store, "--out", "it")
    shutil.copytree("it", "copy")
    before = files("it")
    assert summary(run, "resume", "copy", "--steps", "4")["steps"] == 4
    assert files("it") == before
    Path("it").rename("moved")
    assert summary(run, "resume", "moved", "--steps", "4")["steps"] == 4
    assert not Path("it").exists()


def test_a_branch_of_an_untrusted_run_is_as_untrusted(
    run: Command, uninterrupted: dict[str, Any]
) -> None:
    change("uninterrupted", lambda content: content["about"].update(hours=None))  # same content
    assert run("fork", "uninterrupted", "--at", "9", "--out", "mine", "--quiet")[0] == 0
    change("uninterrupted", lambda content: content["about"].update(concurrency=2))
    assert run("fork", "uninterrupted", "--at", "9", "--out", "theirs", "--quiet")[0] == 2
    how = ("--out", "theirs", "--quiet", "--trust")
    assert run("fork", "uninterrupted", "--at", "9", *how)[0] == 0
    assert run("resume", "theirs", "--quiet")[0] == 0


def test_only_this_user_reads_a_run(run: Command, uninterrupted: dict[str, Any]) -> None:
    summary(run, "meadow.py", "--steps", "2", "--store", "embedded")
    for folder in (Path("uninterrupted"), Path("runs/meadow-1")):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for path in folder.rglob("*"):
            if path.is_file():
                assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_policy_of_ones_own_is_the_same_file_wherever_the_run_is_resumed(
    uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    options = options_of(Path("uninterrupted"), {}, trust=False)
    for policy, kept in (
        ("mine.py:Mine", f"{tmp_path}/mine.py:Mine"),
        ("step+mine.py:Mine:a=1/2", f"step+{tmp_path}/mine.py:Mine:a=1/2"),
        ("plas:quanta_s=1/2/4", "plas:quanta_s=1/2/4"),
    ):
        assert replace(options, policy=policy).kept(tmp_path)["policy"] == kept
