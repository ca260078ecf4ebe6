"""A Ray of two nodes in two network namespaces, one of which is cut off in mid-run."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from metropolis.bench.recovery.nodes import Nodes, Place, ray_environment
from metropolis.store.embedded import WATCH, EmbeddedServer
from tests.runtime import killable

STEPS = 1000
CUT_AT = 30
LINK = "veth0"
PASSWORD = "METROPOLIS_STORE_PASSWORD"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


@dataclass(frozen=True)
class Network:
    """Two namespaces and a link between them."""

    here: str
    there: str
    here_address: str = "10.213.77.1"
    there_address: str = "10.213.77.2"

    def cut(self) -> None:
        ip("-n", self.there, "link", "set", LINK, "down")


def inside(namespace: str) -> tuple[str, ...]:
    return ("ip", "netns", "exec", namespace)


@contextmanager
def namespace(name: str) -> Iterator[str]:
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        ip("netns", "delete", name)


@pytest.fixture
def network() -> Iterator[Network]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root, and ip from iproute2")
    with ExitStack() as made:
        try:
            name = f"m{os.getpid()}"
            here, there = (made.enter_context(namespace(f"{name}{end}")) for end in "ab")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine lets nobody make network namespaces: {error.stderr!r}")
        found = Network(here, there)
        peer = ("peer", "name", LINK, "netns", there)
        ip("-n", here, "link", "add", LINK, "type", "veth", *peer)
        for end, address in ((here, found.here_address), (there, found.there_address)):
            ip("-n", end, "address", "add", f"{address}/24", "dev", LINK)
            ip("-n", end, "link", "set", LINK, "up")
        yield found


@contextmanager
def store_in(network: Network, folder: Path, password: str) -> Iterator[str]:
    """The address of a server that both namespaces reach; ends with this process."""
    with EmbeddedServer() as embedded:
        assert isinstance(embedded, EmbeddedServer)
        binary = os.readlink(f"/proc/{embedded.pid}/exe")
    options = ["--bind", network.here_address, "--port", "7379", "--save", ""]
    server = [*inside(network.here), binary, *options, "--requirepass", password]
    process = subprocess.Popen(
        [
            "/bin/sh",
            "-c",
            WATCH,
            "store",
            *inside(network.here),
            *server,
            "--requirepass",
            password,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "SOCKETS": str(folder / "none")},
    )
    try:
        yield f"redis://{network.here_address}:7379/0"
    finally:
        process.communicate(timeout=30)


def steps_in(out: Path) -> int:
    history = out / "history.jsonl"
    return history.read_bytes().count(b"\n") if history.exists() else 0


def test_a_run_finishes_without_the_node_that_was_cut_off(
    tmp_path: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(killable, "LATENCY_S", 0.0)  # of this process, not of the other
    whole = killable.simulation(tmp_path / "whole", "memory").run(STEPS)
    (tmp_path / "bought").unlink()
    out, password = tmp_path / "it", secrets.token_hex(8)
    environment = {**ray_environment(), PASSWORD: password}
    ray = Path(tempfile.mkdtemp(prefix="mr-", dir="/tmp"))  # sockets want a short path
    command = [*inside(network.here), sys.executable, "-m", "tests.runtime.killable"]
    with ExitStack() as ended:
        ended.callback(shutil.rmtree, ray, ignore_errors=True)
        url = ended.enter_context(store_in(network, tmp_path, password))
        nodes = Nodes(
            ray,
            environment,
            Place(inside(network.here), network.here_address),
            Place(inside(network.there), network.there_address),
        )
        ended.callback(nodes.close)
        process = subprocess.Popen(
            [*command, str(out), url, f"{STEPS}", "ray:2", nodes.address],
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        ended.callback(process.wait)
        ended.callback(process.kill)
        while not (steps_in(out) >= CUT_AT and nodes.actors_on_second()):
            assert process.poll() is None
            time.sleep(0.02)
        network.cut()
        cut_at = steps_in(out)
        said, _ = process.communicate(timeout=150)
    assert CUT_AT <= cut_at < STEPS
    assert process.returncode == 0
    assert said.decode().split() == [whole.history_sha256]
    bought = Counter((tmp_path / "bought").read_text().splitlines())
    assert bought.total() <= whole.calls + 2 * 6  # a walker has one call in flight at most
