"""Several processes on one store, some of which are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metropolis.store.base import Store, StoreError, StoreUnavailableError
from metropolis.store.embedded import EmbeddedServer
from metropolis.store.server import RedisServer
from tests.store.lines import LEASE_S, begin, claimed, commit, dispatch
from tests.waiting import eventually, has_ended

START = """
import sys
from pathlib import Path
from metropolis.store.embedded import EmbeddedServer
from metropolis.store.server import RedisServer
from tests.store.lines import *
"""


@contextmanager
def process(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run `program` in a process; kill it at the end."""
    child = subprocess.Popen(
        [sys.executable, "-c", START + program, *arguments],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def said(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def tell(child: subprocess.Popen[str], line: str) -> None:
    assert child.stdin is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()


@pytest.fixture
def run(shared: EmbeddedServer) -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    shared.remove(name)


def test_of_two_who_commit_the_same_step_one_counts(shared: EmbeddedServer, run: str) -> None:
    """Each process has claimed every cluster; the first one's claims have expired."""
    store = shared.store(run)
    fence = begin(store, 30)
    for agent in range(30):
        dispatch(store, fence, 0, agent)
    program = """
store = RedisServer(sys.argv[1]).store(sys.argv[2])
claims = [claimed(store, sys.argv[3], float(sys.argv[4])) for _ in range(30)]
print("claimed", flush=True)
input()
print(sum(commit(store, claim) for claim in claims), flush=True)
"""
    with process(program, shared.url, run, "early", "0.001") as early:
        assert said(early) == "claimed"
        with process(program, shared.url, run, "late", "600") as late:
            assert said(late) == "claimed"
            tell(early, "go")
            tell(late, "go")
            counted = [int(said(child)) for child in (early, late)]
    assert counted == [0, 30]
    committed = [a.execution.agents for a in store.acknowledgements("0", 0)]
    assert sorted(committed) == [(agent,) for agent in range(30)]
    assert store.inspect().counts["refused"] == 30


def test_of_two_who_race_for_ready_clusters_each_gets_others(
    shared: EmbeddedServer, run: str
) -> None:
    store = shared.store(run)
    fence = begin(store, 40)
    program = """
store = RedisServer(sys.argv[1]).store(sys.argv[2])
print("here", flush=True)
input()
counted = 0
while claim := store.claim(sys.argv[3], 600, 2):
    counted += commit(store, claim)
print(counted, flush=True)
"""
    with (
        process(program, shared.url, run, "one") as one,
        process(program, shared.url, run, "two") as two,
    ):
        for child in (one, two):
            assert said(child) == "here"
            tell(child, "go")
        for agent in range(40):
            dispatch(store, fence, 0, agent)
        assert int(said(one)) + int(said(two)) == 40
    about = store.inspect()
    assert about.counts["claims"] == about.counts["commits"] == 40


def whole(store: Store, first: int, load: str) -> int:
    """Return the agent's step; check that every part of its last commit is stored."""
    (step,) = store.nodes().steps
    (body,), events = store.world(step)
    assert body.position == (0, step % 2)
    assert body["by"] == "victim"
    assert [len(event["what"]) for event in events] == [len(load)]
    assert store.minds([0]) == {0: {"step": step, "load": load}}
    acks = store.acknowledgements("0", 0)
    assert [ack.execution.step for ack in acks] == list(range(first, step))
    return step


def test_nothing_is_half_written_by_a_client_that_is_killed(
    shared: EmbeddedServer, run: str
) -> None:
    """Commits have a megabyte, so that some are cut off while they are sent."""
    store, load = shared.store(run), 300_000 * "x"
    fence = begin(store, 1)
    program = """
store, load = RedisServer(sys.argv[1]).store(sys.argv[2]), int(sys.argv[4]) * "x"
for step in range(store.nodes().steps[0], 10_000):
    dispatch(store, int(sys.argv[3]), step, 0)
    assert commit(store, store.claim("victim", 0.05, 60), load)
"""
    before = 0
    connections = len(shared.client.client_list())
    for kill in range(10):
        with process(program, shared.url, run, str(fence), str(len(load))) as victim:
            assert eventually(lambda before=before: store.nodes().steps[0] > before)
            time.sleep(kill * 0.002)
            victim.kill()
            victim.wait()
            # by then, the commands it sent are executed, or never will be
            assert eventually(lambda: len(shared.client.client_list()) == connections)
            before = whole(store, before, load)
            store.collect(fence, before)


OWNER = """
server = EmbeddedServer(Path(sys.argv[1]) if sys.argv[1] else None)
print(server.pid, server.url, flush=True)
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc, which Linux has")
@pytest.mark.parametrize("end", ["kill", "exit", "thread", "fork"])
def test_a_server_ends_with_its_owner(end: str, tmp_path: Path) -> None:
    last_acts = {
        "kill": "input()",
        "exit": "sys.exit()",
        "thread": "input()",
        "fork": "child = os.fork()\nprint(child, flush=True) if child else time.sleep(99)\ninput()",
    }
    begun = OWNER
    if end == "thread":  # the server outlives the thread that started it
        lines = OWNER.replace("\n", "\n    ")
        begun = f"""
import threading
def start():
    global server{lines}
thread = threading.Thread(target=start)
thread.start(); thread.join()
"""
    folder = "" if end == "exit" else str(tmp_path / "kept")
    with process(f"import os, time{begun}\n{last_acts[end]}", folder) as owner:
        pid, url = said(owner).split()
        forked = int(said(owner)) if end == "fork" else None
        socket = Path(url.removeprefix("unix://"))
        if end == "exit":
            owner.wait()
        else:
            assert RedisServer(url).runs() == []
            assert not has_ended(int(pid))
            owner.send_signal(signal.SIGKILL)
            owner.wait()
        assert eventually(lambda: has_ended(int(pid)))
        assert eventually(lambda: not socket.parent.exists())
        if forked is not None:
            assert not has_ended(forked)
            os.kill(forked, signal.SIGKILL)


def test_a_run_outlives_its_server(tmp_path: Path) -> None:
    """The server is killed in the middle of a run, and again with its owner."""
    with EmbeddedServer(tmp_path) as server:
        store = server.store("long")
        fence = begin(store, 2)
        dispatch(store, fence, 0, 0)
        dispatch(store, fence, 0, 1)
        held, other = claimed(store), claimed(store)
        assert commit(store, held)
        (acknowledged,) = store.acknowledgements("0", 0)
        os.kill(server.pid, signal.SIGKILL)
        assert eventually(lambda: server.has_ended)
        with pytest.raises(StoreError, match=r"the embedded server has ended, .*server\.log may"):
            store.nodes()
        with pytest.raises(StoreUnavailableError, match=r"does not answer .* server\.log"):
            RedisServer(server.url)  # for others, it may come back
        server.restart()
        assert list(store.nodes().steps) == [1, 0]
        assert store.acknowledgements(acknowledged.id, 0) == []
        assert commit(store, other)
    with process(OWNER + "input()", str(tmp_path)) as owner:
        _, url = said(owner).split()
        store = RedisServer(url).store("long")
        assert list(store.nodes().steps) == [1, 1]
        with pytest.raises(StoreUnavailableError, match="has not confirmed yet"):
            dispatch(store, fence, 1, 0, 1)
        fence = store.take_lease("test", 0)
        dispatch(store, fence, 1, 0, 1)
    with EmbeddedServer(tmp_path) as server:  # after the killed owner's server ended
        store = server.store("long")
        with pytest.raises(StoreUnavailableError, match="has not confirmed yet"):
            store.claim("test", LEASE_S)
        store.take_lease("test", 0)
        assert commit(store, claimed(store))
        assert list(store.nodes().steps) == [2, 2]


def test_a_server_that_has_lost_commits_is_noticed() -> None:
    with EmbeddedServer() as server:
        store = server.store("short")
        fence = begin(store, 1)
        dispatch(store, fence, 0, 0)
        assert commit(store, claimed(store))
        (acknowledged,) = store.acknowledgements("0", 0)
        server.client.flushall()
        begin(store, 1)
        with pytest.raises(StoreError, match="has lost its newest commits"):
            store.acknowledgements(acknowledged.id, 0)
