"""`metropolis store` from the command line."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from metropolis.store.embedded import EmbeddedServer
from tests.commands import Command
from tests.store.lines import begin, claimed, commit, dispatch


@pytest.fixture
def run(metropolis: Command) -> Command:
    """Run `metropolis store …`."""
    return partial(metropolis, "store")


def test_ls_inspect_and_rm(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
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
        listed = run("ls").result
        assert all(word in listed for word in ("tuesday", "line", "10,000", "me"))
        said = run("inspect", "tuesday").result
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
        about = json.loads(run("inspect", "tuesday", "--json").result)
        assert about["steps"] == [1, 0, 0, 0, 0]
        assert list(json.loads(run("ls", "--json").result)) == ["tuesday"]
        assert run("rm", "tuesday").refusal
        store.release_lease(fence)
        assert json.loads(run("ls", "--json").result)["tuesday"]["holder"] is None
        assert "holder      none\n" in run("inspect", "tuesday").result
        assert run("rm", "tuesday").result == "removed tuesday\n"
        assert "there is no run 'tuesday'" in run("inspect", "tuesday").refusal


def test_names_of_others_do_not_reach_the_terminal_as_they_are(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = "\x1b]0;OWN\x07[red]:x:\x9b2J"
    monkeypatch.setenv("COLUMNS", "200")
    with EmbeddedServer() as server:
        monkeypatch.setenv("METROPOLIS_STORE", server.url)
        store = server.store(evil)
        begin(store, 5)
        store.take_lease(evil, 600)
        for arguments in (("ls",), ("inspect", evil)):
            said = run(*arguments).result
            assert r"\x1b]0;OWN\x07[red]:x:\x9b2J" in said
            assert all(char.isprintable() or char == "\n" for char in said)


def test_no_store_is_named(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METROPOLIS_STORE", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
    said = run("ls").refusal
    assert "no store is named; give --store" in said
    assert said.endswith("or set METROPOLIS_STORE or REDIS_URL\n")


def test_a_folder_without_a_store_is_refused_and_stays_as_it_is(
    run: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in (tmp_path / "nowhere", tmp_path):
        refusal = run("ls", "--store", f"embedded:{folder}").refusal
        assert f"{folder}: holds no store; name the folder of one" in refusal
    assert list(tmp_path.iterdir()) == []
    assert "name embedded:FOLDER" in run("ls", "--store", "embedded").refusal


def test_who_names_no_run_is_told_which_there_are(
    run: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address = f"embedded:{tmp_path}"
    with EmbeddedServer(tmp_path) as server:
        refusal = run("rm", "nothing", "--store", address).refusal
        assert f"{address}: there is no run 'nothing'; it holds none\n" in refusal
        for name in ("monday", "tuesday"):
            begin(server.store(name), 2)
        url = server.url.replace("unix://", "unix://ann:hunter2@")
        for asked in ("rm", "inspect"):
            refusal = run(asked, "nothing", "--store", address).refusal
            assert f"{address}: there is no run 'nothing'; there are monday; tuesday\n" in refusal
        monkeypatch.setenv("METROPOLIS_STORE", url)
        assert "hunter2" not in run("rm", "nothing").refusal


def test_a_damaged_run_hides_no_other_and_can_be_removed(
    run: Command, monkeypatch: pytest.MonkeyPatch
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
        listed = run("ls").result
        damaged = ["no-floor", "no-info", "no-node", "nobody"]
        for name in damaged:
            assert f"the run '{name}' is damaged" in " ".join(listed.split())
        about = json.loads(run("ls", "--json").result)
        assert sorted(about) == sorted(["good", *damaged])
        assert [name for name in about if "error" not in about[name]] == ["good"]
        for name in damaged:
            assert "is damaged" in run("inspect", name).refusal
            assert run("rm", name).result == f"removed {name}\n"
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
