"""A Ray of two nodes on this machine, which ends with this process."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from metropolis.bench import installed
from metropolis.bench.recovery.processes import actors_below, alive, below, raylet_below
from metropolis.types import MetropolisError

WATCH = """
exec 3<&0
"$@" 3<&- &
node=$!
{ read -r _ <&3; kill $node; } &
reader=$!
wait $node
kill $reader
"""
"""Ends the node when a pipe from this process is closed, in whatever way."""
START_S = 90.0
STARTS = 5
STOP_S = 15.0
STORE_BYTES = 80_000_000
"""Of each node's object store: Ray's least is 75 MB, and a run keeps its world there."""


def ray_environment() -> dict[str, str]:
    """What every process of one Ray has in its environment."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}


@dataclass(frozen=True)
class Place:
    """Where a node runs: `inside` begins its command, a network namespace's for instance."""

    inside: tuple[str, ...] = ()
    address: str | None = None
    """None: as Ray finds it."""

    @property
    def options(self) -> list[str]:
        """Of `ray start`."""
        return [] if self.address is None else [f"--node-ip-address={self.address}"]


HERE = Place()


class Nodes:
    """A head, and a second node that may be killed."""

    def __init__(
        self, folder: Path, environment: dict[str, str], head: Place = HERE, second: Place = HERE
    ) -> None:
        """Ray's files are in `folder`, whose path must be short."""
        self._place = second
        self._folder, self._environment = folder, {**os.environ, **environment}
        with socket.create_server(("", 0)) as free:
            port = free.getsockname()[1]
        self._replacing: Thread | None = None
        options = [f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false"]
        self._head, log = self._start("head", head, "--head", *options)
        try:
            where = re.search(r"Local node IP: (\S+)", log)
            assert where is not None, log
            self.address = f"{where[1]}:{port}"
            self._second, _ = self._start("second", second, f"--address={self.address}")
        except BaseException:
            _end(self._head)
            raise

    def actors(self) -> list[int]:
        """The processes of our workers on both nodes."""
        return sorted([*actors_below(self._head.pid), *self.actors_on_second()])

    def actors_on_second(self) -> list[int]:
        """The processes of our workers there."""
        return actors_below(self._second.pid)

    def kill_second(self, away_s: float) -> list[int]:
        """`kill -9` of the second node; the workers' processes that end with it.

        After `away_s` another node takes its place, which is waited for the next time.
        """
        self._settle()
        if self._second.poll() is not None:
            raise MetropolisError("Ray's second node does not start any more")
        pids = actors_below(self._second.pid)
        raylet = raylet_below(self._second.pid)
        assert raylet is not None
        os.kill(raylet, signal.SIGKILL)
        self._replacing = Thread(target=self._replace, args=[away_s])
        self._replacing.start()
        return pids

    def _replace(self, away_s: float) -> None:
        time.sleep(away_s)
        _end(self._second)
        for left in reversed(range(STARTS)):
            try:
                self._second, _ = self._start("second", self._place, f"--address={self.address}")
                return
            except MetropolisError:  # Ray gives up early on a busy machine
                if not left:
                    raise

    def _settle(self) -> None:
        if self._replacing is not None:
            self._replacing.join()

    def close(self) -> None:
        """End both."""
        self._settle()
        _end(self._second)
        _end(self._head)

    def _start(self, name: str, place: Place, *options: str) -> tuple[subprocess.Popen[bytes], str]:
        """The process, and what it has said, as soon as the node is up."""
        log = self._folder / f"{name}.log"
        watch = ["/bin/sh", "-c", WATCH, "ray-node", *place.inside]
        command = [*installed("from ray.scripts.scripts import main; main()"), "start"]
        always = ("--block", "--num-cpus=1", f"--object-store-memory={STORE_BYTES}")
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*watch, *command, *always, "--disable-usage-stats", *place.options, *options],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        deadline_s = time.monotonic() + START_S
        while "runtime started" not in (said := log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() > deadline_s:
                _end(process)
                last = log.read_text(errors="replace").strip().rpartition("\n")[2]
                raise MetropolisError(f"a node of Ray did not start: {last} (all of it: {log})")
            time.sleep(0.05)
        return process, said


def _end(process: subprocess.Popen[bytes]) -> None:
    """It ends what it has started; what is left of that after a while is killed."""
    pids = [*below(process.pid)]
    try:
        process.communicate(timeout=STOP_S)  # closes the pipe
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    deadline_s = time.monotonic() + STOP_S
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
