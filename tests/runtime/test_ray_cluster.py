"""The Ray cluster that a run starts and access to it; and clusters that cannot be joined."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import ray

from metropolis.bench._processes import command_of, descendants
from metropolis.bench.recovery.ray_processes import raylet_of
from metropolis.cli.ctrl_c import STATUS_INTERRUPTED
from metropolis.types import MetropolisError
from metropolis.workers import ray_cluster

LISTENS = "0A"
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1 and ::1 as /proc/net writes them."""
SLOW_RUN = ["--steps", "100000", "--quiet", "--store", "embedded", "--workers", "ray:1"]


def listening(pids: set[int]) -> dict[str, str]:
    """Return the TCP sockets on which `pids` listen: address as in /proc/net -> process."""
    owners = {}
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                owners[os.readlink(link)] = Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:  # closed meanwhile
                continue
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, place, _, state, *more = line.split()
            owner = owners.get(f"socket:[{more[5]}]")
            if state == LISTENS and owner is not None:
                found[place] = owner
    return found


def test_what_a_run_begins_listens_on_loopback_only(tmp_path: Path) -> None:
    """This holds for Ray and the store; without the token, Ray refuses all requests.

    A SIGTERM ends the run like Ctrl-C.
    """
    script = Path(sys.executable).with_name("metropolis")
    out = tmp_path / "it"
    command = [script, "run", "minimal", *SLOW_RUN, "--out", out]
    run = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        history = out / "history.jsonl"
        while not history.exists() or history.read_bytes().count(b"\n") < 2:  # a header, a step
            assert run.poll() is None
            time.sleep(0.05)
        processes = descendants(run.pid)
        places = listening({run.pid, *processes})
        assert {"raylet", "gcs_server"} <= {*places.values()}, places
        assert {place.partition(":")[0] for place in places} <= LOOPBACK, places
        raylet = raylet_of(run.pid)
        assert raylet is not None
        variables = environment_of(raylet)
        token = variables["RAY_AUTH_TOKEN"]
        assert not any(token.encode() in command_of(pid) for pid in processes)
        gcs = next(place for place, owner in places.items() if owner == "gcs_server")
        address = f"127.0.0.1:{int(gcs.partition(':')[2], 16)}"
        wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * len(token)}
        right = {**wrong, "RAY_AUTH_TOKEN": token}
        refused = f"the Ray at {address} refuses this user's token; "
        said = joined(address, {}, wrong, right)
        assert [one.startswith(refused) for one in said] == [True, True, False]
        assert said[2] == "joined"
    finally:
        run.terminate()
        _, errors = run.communicate()
    assert run.returncode == STATUS_INTERRUPTED  # Ray's own handlers do not replace the run's
    assert errors.startswith("metropolis: interrupted; the run is at step ")


def environment_of(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


JOIN = """
import json, os, sys
from metropolis.types import MetropolisError
from metropolis.workers import ray_cluster
for variables in json.loads(sys.argv[2]):
    os.environ.update(variables)
    ray_cluster._read_environment()
    try:
        ray_cluster.check_address(sys.argv[1])
        print("joined")
    except MetropolisError as error:
        print(error)
"""


def joined(address: str, *environments: dict[str, str]) -> list[str]:
    """Let other processes with these variables join the cluster; return their results."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-c", JOIN, address, json.dumps(environments)],
        env={**plain, **ray_cluster.LOOPBACK},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    ).stdout.splitlines()


@contextmanager
def answering(said: bytes | None) -> Iterator[str]:
    """Yield the address of a server that sends `said`, or stays silent."""
    connections = []
    with socket.create_server(("", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            connections.append(connection)
            if said is not None:
                connection.sendall(said)
                connection.close()

        thread = Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()
    for connection in connections:
        connection.close()


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_cluster, "PROBE_S", 0.5)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.parametrize(
    "said", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"-ERR unknown command\r\n"]
)
def test_what_is_no_ray(no_ray: None, said: bytes | None) -> None:
    with answering(said) as address, pytest.raises(MetropolisError, match="no Ray answers at"):
        ray_cluster.check_address(address)


@pytest.mark.parametrize(
    "address", ["foo", "ray://127.0.0.1:10001", "127.0.0.1:x", ":", "h:1", "\udc80:6379"]
)
def test_what_is_no_address(no_ray: None, address: str) -> None:
    with pytest.raises(
        MetropolisError, match="is not an address of a Ray cluster; write HOST:PORT"
    ):
        ray_cluster.check_address(address)


@pytest.mark.parametrize("address", ["no.such.host.invalid:6379", "127.0.0.1:1025"])
def test_where_nothing_answers(no_ray: None, address: str) -> None:
    with pytest.raises(MetropolisError, match="no Ray answers at"):
        ray_cluster.check_address(address)


@pytest.mark.parametrize(("failures", "starts"), [(2, 3), (3, 3)])
def test_a_slow_start_is_repeated(
    no_ray: None, failures: int, starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = []

    def init(**options: Any) -> None:
        began.append(options)
        if len(began) <= failures:
            raise Exception("The current node timed out during startup.")  # as Ray raises it

    monkeypatch.setattr(ray, "init", init)
    if failures < starts:
        ray_cluster.join_ray(1, None)()
    else:
        with pytest.raises(MetropolisError, match="timed out during startup"):
            ray_cluster.join_ray(1, None)
    assert len(began) == starts
