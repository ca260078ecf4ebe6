"""`metropolis store` as its user meets it."""

from __future__ import annotations

import json
import sys

import pytest

from metropolis.cli import main
from metropolis.store.embedded import EmbeddedServer
from tests.store.lines import begin, claimed, commit, dispatch


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["metropolis", "store", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    captured = capsys.readouterr()
    return int(exited.value.code or 0), captured.out + captured.err


def test_ls_inspect_and_rm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with EmbeddedServer() as server:
        monkeypatch.setenv("METROPOLIS_STORE", server.url)
        store = server.store("tuesday")
        begin(store, 5)
        fence = store.take_lease("me", 600)
        for agent in range(3):
            dispatch(store, fence, 0, agent)
        assert commit(store, claimed(store))
        claimed(store, "worker 7")
        store.dispatch(fence, [], {0: 1, 4: 3}, 0)
        status, listed = run(monkeypatch, capsys, "ls")
        assert status == 0
        assert all(word in listed for word in ("tuesday", "line", "10,000", "me"))
        status, said = run(monkeypatch, capsys, "inspect", "tuesday")
        assert status == 0
        for line in (
            "steps       4 at 0; 1 at 1",
            "blocked     a0 at 1 by a1 at 0; a4 at 0 with a3",
            "ready       step 0: a2",
            "claimed     step 0: a1 by worker 7 for",
            "to be read  1 acknowledgements",
            "held        by me, for ",
            "warning     the server keeps no append-only file",
        ):
            assert line in said
        _, said = run(monkeypatch, capsys, "inspect", "tuesday", "--json")
        assert json.loads(said)["steps"] == [1, 0, 0, 0, 0]
        _, said = run(monkeypatch, capsys, "ls", "--json")
        assert list(json.loads(said)) == ["tuesday"]
        assert run(monkeypatch, capsys, "rm", "tuesday")[0] == 2
        store.release_lease(fence)
        assert run(monkeypatch, capsys, "rm", "tuesday") == (0, "tuesday is removed\n")
        status, said = run(monkeypatch, capsys, "inspect", "tuesday")
        assert status == 2
        assert "there is no run 'tuesday'" in said


def test_no_store_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("METROPOLIS_STORE", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
    status, said = run(monkeypatch, capsys, "ls")
    assert status == 2
    assert "no store is named; give --store" in said
