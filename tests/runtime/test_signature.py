"""The user's key, and its signatures of files."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from metropolis.runtime.folder import signature
from metropolis.runtime.folder.signature import distrust_reason, sign

CONTENT = {"world": "mine", "about": {"llm": "http://h", "hours": 0.1, "big": 10**300, "": None}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration folder that does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    return tmp_path / "configuration" / "metropolis"


def test_what_this_user_has_signed(folder: Path) -> None:
    signed = sign("run.json", CONTENT)
    assert distrust_reason("run.json", json.loads(json.dumps(CONTENT)), signed) is None
    assert [path.name for path in folder.iterdir()] == ["run-key"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "run-key").stat().st_mode) == 0o600
    assert signed != sign("store.json", CONTENT)
    changed = "has been changed since this user signed it"
    assert distrust_reason("store.json", CONTENT, signed) == changed
    assert distrust_reason("run.json", {**CONTENT, "world": "yours"}, signed) == changed
    assert distrust_reason("run.json", CONTENT, None) == "is not signed"
    for wrong in (3, "", "x", "é" * 73, [signed], {}):
        assert distrust_reason("run.json", CONTENT, wrong) is not None


def test_a_key_of_somebody_else(folder: Path) -> None:
    signed = sign("run.json", CONTENT)
    (folder / "run-key").unlink()
    assert "run-key: No such file" in str(distrust_reason("run.json", CONTENT, signed))
    assert not (folder / "run-key").exists()  # only signing creates one
    sign("run.json", CONTENT)
    assert distrust_reason("run.json", CONTENT, signed) == (
        "is signed with another user's or machine's key"
    )


@pytest.mark.parametrize(
    ("mode", "key", "why"),
    [
        (0o640, bytes(32), "others can read it"),
        (0o600, b"", "is not a key"),
        (0o600, bytes(33), "no"),
    ],
)
def test_a_key_that_is_none(folder: Path, mode: int, key: bytes, why: str) -> None:
    signed = sign("run.json", CONTENT)
    (folder / "run-key").write_bytes(key)
    (folder / "run-key").chmod(mode)
    assert sign("run.json", CONTENT) is None
    assert why in str(distrust_reason("run.json", CONTENT, signed))


def test_a_key_that_is_a_pipe(folder: Path) -> None:
    folder.mkdir(parents=True)
    os.mkfifo(folder / "run-key", 0o600)
    assert sign("run.json", CONTENT) is None
    why = str(distrust_reason("run.json", CONTENT, None))
    assert "is not signed (this user cannot sign: " in why
    assert "run-key: is not a regular file" in why


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert sign("run.json", CONTENT) is None
    assert "Not a directory" in str(distrust_reason("run.json", CONTENT, "x"))


def test_a_folder_of_somebody_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True)
    owner = folder.stat().st_uid
    monkeypatch.setattr(signature.os, "geteuid", lambda: owner + 1)
    assert sign("run.json", CONTENT) is None
    assert list(folder.iterdir()) == []  # no unreadable key is left


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")  # to be ignored by the specification
    monkeypatch.setattr(Path, "home", nowhere)
    assert sign("run.json", CONTENT) is None
    assert "this user has no home" in str(distrust_reason("run.json", CONTENT, "x"))


def test_many_processes_at_once_make_one_key() -> None:
    program = "from metropolis.runtime.folder.signature import sign; print(sign('run.json', {}))"
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(6)
    ]
    signed = {process.communicate()[0] for process in processes}
    assert len(signed) == 1
    assert b"None" not in signed.pop()
