"""A Ray cluster of two nodes in two network namespaces, one of which is cut off mid-run."""

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

from metropolis.bench.recovery.nodes import Location, Nodes, ray_environment
from metropolis.store import seals
from metropolis.store.embedded import EmbeddedServer
from tests.runtime import killable

STEPS = 300
CUT_AT = 5
LINK = "veth0"
PASSWORD = "METROPOLIS_STORE_PASSWORD"
DEAD_SOON = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "2",
}
"""Ray's head gives up a silent node after about 10 s."""


@dataclass(frozen=True)
class Namespace:
    """A network namespace, which ends with its last process."""

    pid: int
    address: str

    @property
    def inside(self) -> tuple[str, ...]:
        """Command prefix that runs a command in the namespace."""
        return ("nsenter", f"--net=/proc/{self.pid}/ns/net")

    def ip(self, *words: str) -> None:
        subprocess.run([*self.inside, "ip", *words], check=True, capture_output=True, timeout=30)


@contextmanager
def namespace(address: str) -> Iterator[Namespace]:
    """Create a namespace held by a process that ends when a pipe from this one closes."""
    holder = subprocess.Popen(
        ["unshare", "--net", "cat"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    found = Namespace(holder.pid, address)
    try:
        while os.readlink(f"/proc/{holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            if holder.poll() is not None:
                pytest.skip("this machine lets nobody make network namespaces")
            time.sleep(0.01)
        found.ip("link", "set", "lo", "up")
        yield found
    finally:
        holder.communicate()


@pytest.fixture
def network() -> Iterator[tuple[Namespace, Namespace]]:
    """Create two namespaces and a link between them."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root, and ip from iproute2")
    with namespace("10.213.77.1") as here, namespace("10.213.77.2") as there:
        peer = ("peer", "name", LINK, "netns", f"{there.pid}")
        here.ip("link", "add", LINK, "type", "veth", *peer)
        for end in (here, there):
            end.ip("address", "add", f"{end.address}/24", "dev", LINK)
            end.ip("link", "set", LINK, "up")
        yield here, there


@contextmanager
def store_in(where: Namespace, folder: Path, password: str) -> Iterator[str]:
    """Run a server that both namespaces reach; yield its address. It ends with this process."""
    with EmbeddedServer() as embedded:
        assert isinstance(embedded, EmbeddedServer)
        binary = os.readlink(f"/proc/{embedded.pid}/exe")
    options = ["--bind", where.address, "--port", "7379", "--save", "", "--requirepass", password]
    process = subprocess.Popen(
        [
            sys.executable,
            "-IS",
            seals.__file__,
            folder / "none",
            "",
            *where.inside,
            binary,
            *options,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield f"redis://{where.address}:7379/0"
    finally:
        process.communicate(timeout=30)


def buyers(folder: Path) -> set[int]:
    """Return the processes that have bought an answer so far."""
    file = folder / "buyers"
    return {int(line) for line in file.read_text().splitlines()} if file.exists() else set()


def steps_in(out: Path) -> int:
    history = out / "history.jsonl"
    return history.read_bytes().count(b"\n") if history.exists() else 0


def test_a_run_finishes_without_the_node_that_was_cut_off(
    tmp_path: Path, network: tuple[Namespace, Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = network
    monkeypatch.setattr(killable, "LATENCY_S", 0.0)  # only in this process
    whole = killable.simulation(tmp_path / "whole", "memory").run(STEPS)
    (tmp_path / "bought").unlink()
    (tmp_path / "slow").touch()  # the run outlasts the cut: at least a minute
    out, password = tmp_path / "it", secrets.token_hex(8)
    environment = {**ray_environment(), **DEAD_SOON, PASSWORD: password}
    ray = Path(tempfile.mkdtemp(prefix="mr-", dir="/tmp"))  # sockets need a short path
    command = [*here.inside, sys.executable, "-m", "tests.runtime.killable"]
    with ExitStack() as ended:
        ended.callback(shutil.rmtree, ray, ignore_errors=True)
        url = ended.enter_context(store_in(here, tmp_path, password))
        nodes = Nodes(
            ray,
            environment,
            Location(here.inside, here.address),
            Location(there.inside, there.address),
        )
        ended.callback(nodes.close)
        process = subprocess.Popen(
            [*command, str(out), url, f"{STEPS}", "out_of_order", "ray:2", nodes.address],
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        ended.callback(process.wait)
        ended.callback(process.kill)
        while not (steps_in(out) >= CUT_AT and buyers(tmp_path) & {*nodes.actors_on_second()}):
            assert process.poll() is None
            time.sleep(0.02)
        there.ip("link", "set", LINK, "down")
        (tmp_path / "slow").unlink()
        cut_at = steps_in(out)
        said, _ = process.communicate(timeout=600)
        there.ip("link", "set", LINK, "up")  # the node can end
    assert CUT_AT <= cut_at < STEPS
    assert process.returncode == 0
    assert said.decode().split() == [whole.history_sha256]
    bought = Counter((tmp_path / "bought").read_text().splitlines())
    assert bought.total() <= whole.calls + 2 * 6  # a walker has one call in flight at most
