"""`metropolis store` from the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

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
            "commits     1 not collected",
            "holder      me, lease valid for ",
            "warning     the server keeps no append-only file",
        ):
            assert line in said
        _, said = run(monkeypatch, capsys, "inspect", "tuesday", "--json")
        assert json.loads(said)["steps"] == [1, 0, 0, 0, 0]
        _, said = run(monkeypatch, capsys, "ls", "--json")
        assert list(json.loads(said)) == ["tuesday"]
        assert run(monkeypatch, capsys, "rm", "tuesday")[0] == 2
        store.release_lease(fence)
        _, said = run(monkeypatch, capsys, "ls", "--json")
        assert json.loads(said)["tuesday"]["holder"] is None
        _, said = run(monkeypatch, capsys, "inspect", "tuesday")
        assert "holder      none\n" in said
        assert run(monkeypatch, capsys, "rm", "tuesday") == (0, "removed tuesday\n")
        status, said = run(monkeypatch, capsys, "inspect", "tuesday")
        assert status == 2
        assert "there is no run 'tuesday'" in said


def test_names_of_others_do_not_reach_the_terminal_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b]0;OWN\x07[red]:x:\x9b2J"
    monkeypatch.setenv("COLUMNS", "200")
    with EmbeddedServer() as server:
        monkeypatch.setenv("METROPOLIS_STORE", server.url)
        store = server.store(evil)
        begin(store, 5)
        store.take_lease(evil, 600)
        for arguments in (("ls",), ("inspect", evil)):
            status, said = run(monkeypatch, capsys, *arguments)
            assert status == 0
            assert r"\x1b]0;OWN\x07[red]:x:\x9b2J" in said
            assert all(char.isprintable() or char == "\n" for char in said)


def test_no_store_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("METROPOLIS_STORE", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
    status, said = run(monkeypatch, capsys, "ls")
    assert status == 2
    assert "no store is named; give --store" in said
    assert said.endswith("or set METROPOLIS_STORE or REDIS_URL\n")


def test_a_folder_without_a_store_is_refused_and_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for folder in (tmp_path / "nowhere", tmp_path):
        status, said = run(monkeypatch, capsys, "ls", "--store", f"embedded:{folder}")
        assert status == 2
        assert f"{folder}: holds no store; name the folder of one" in said
    assert list(tmp_path.iterdir()) == []
    status, said = run(monkeypatch, capsys, "ls", "--store", "embedded")
    assert (status, "name embedded:FOLDER" in said) == (2, True)


def test_who_names_no_run_is_told_which_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    address = f"embedded:{tmp_path}"
    with EmbeddedServer(tmp_path) as server:
        status, said = run(monkeypatch, capsys, "rm", "nothing", "--store", address)
        assert (status, f"{address}: there is no run 'nothing'; it holds none\n" in said) == (
            2,
            True,
        )
        for name in ("monday", "tuesday"):
            begin(server.store(name), 2)
        url = server.url.replace("unix://", "unix://ann:hunter2@")
        for asked in ("rm", "inspect"):
            status, said = run(monkeypatch, capsys, asked, "nothing", "--store", address)
            assert status == 2
            assert f"{address}: there is no run 'nothing'; there are monday; tuesday\n" in said
        monkeypatch.setenv("METROPOLIS_STORE", url)
        said = run(monkeypatch, capsys, "rm", "nothing")[1]
        assert "hunter2" not in said


def test_a_damaged_run_hides_no_other_and_can_be_removed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with EmbeddedServer() as server:
        monkeypatch.setenv("METROPOLIS_STORE", server.url)
        foreign = [b"metropolis:{}:info", b"metropolis:{\xff}:info", b"metropolis:{a}b}:info"]
        for key in foreign:
            server.client.set(key, b"not ours")
        for name, key, field, value in (
            ("good", "", "", ""),
            ("no-floor", "state", "floor", "here"),
            ("no-node", "nodes", "0", "x"),
            ("nobody", "blocked", "0", "99"),
            ("no-info", "info", "", "[]"),
        ):
            begin(server.store(name), 5)
            if field:
                server.client.hset(f"metropolis:{{{name}}}:{key}", field, value)
            elif key:
                server.client.set(f"metropolis:{{{name}}}:{key}", value)
        status, listed = run(monkeypatch, capsys, "ls")
        assert status == 0
        damaged = ["no-floor", "no-info", "no-node", "nobody"]
        for name in damaged:
            assert f"the run '{name}' is damaged" in " ".join(listed.split())
        _, said = run(monkeypatch, capsys, "ls", "--json")
        about = json.loads(said)
        assert sorted(about) == sorted(["good", *damaged])
        assert [name for name in about if "error" not in about[name]] == ["good"]
        for name in damaged:
            status, said = run(monkeypatch, capsys, "inspect", name)
            assert (status, "is damaged" in said) == (2, True)
            assert run(monkeypatch, capsys, "rm", name) == (0, f"removed {name}\n")
        assert server.runs() == ["good"]
        assert all(map(server.client.exists, foreign))


def test_an_interrupted_removal_removes_all_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a part of a run remained, the next command would take it for a whole run."""
    with EmbeddedServer() as server:
        begin(server.store("tuesday"), 5)
        sent, execute = [], server.client.execute_command

        def interrupted(*command: object, **options: object) -> object:
            if "UNLINK" in command:
                if sent:
                    raise ConnectionError
                sent.append(command)
            return execute(*command, **options)

        monkeypatch.setattr(server.client, "execute_command", interrupted)
        server.remove("tuesday")
        assert server.client.dbsize() == 0
