"""A Ray cluster of two nodes on this machine, which ends with this process."""

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

from metropolis.bench import python_command
from metropolis.bench._processes import alive, descendants
from metropolis.bench.recovery.ray_processes import actors_of, raylet_of
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
"""Ends the node when a pipe from this process closes, for whatever reason."""
START_S = 90.0
"""Time limit of the start of a node."""
STARTS = 5
"""Attempts to start a replacement of a killed node."""
STOP_S = 15.0
"""Time after which the processes of an ending node are killed."""
STORE_BYTES = 80_000_000
"""Object store of each node: Ray requires 75 MB, and a run keeps its world there."""


def ray_environment() -> dict[str, str]:
    """Return the environment variables that all processes of one Ray cluster share."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}


@dataclass(frozen=True)
class Location:
    """Where a node runs: `inside` is a command prefix, for example of a network namespace."""

    inside: tuple[str, ...] = ()
    address: str | None = None
    """None: Ray detects it."""

    @property
    def options(self) -> list[str]:
        """Options of `ray start`."""
        return [] if self.address is None else [f"--node-ip-address={self.address}"]


HERE = Location()


class Nodes:
    """A head node, and a second node that may be killed."""

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str],
        head: Location = HERE,
        second: Location = HERE,
    ) -> None:
        """Start both nodes with Ray's files in `folder`, whose path must be short."""
        self._location = second
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
        """Return the processes of our workers on both nodes."""
        return sorted([*actors_of(self._head.pid), *self.actors_on_second()])

    def actors_on_second(self) -> list[int]:
        """Return the processes of our workers on the second node."""
        return actors_of(self._second.pid)

    def kill_second(self, away_s: float | None) -> list[int]:
        """Kill the second node with `kill -9`; return the worker processes that end with it.

        After `away_s` another node replaces it; the next call waits for that node. None: nothing
        replaces it.
        """
        self._join_replacement()
        if self._second.poll() is not None:
            raise MetropolisError("Ray's second node failed to restart")
        pids = actors_of(self._second.pid)
        raylet = raylet_of(self._second.pid)
        assert raylet is not None
        os.kill(raylet, signal.SIGKILL)
        if away_s is None:
            return pids
        self._replacing = Thread(target=self._replace, args=[away_s])
        self._replacing.start()
        return pids

    def _replace(self, away_s: float) -> None:
        time.sleep(away_s)
        _end(self._second)
        for left in reversed(range(STARTS)):
            try:
                self._second, _ = self._start("second", self._location, f"--address={self.address}")
                return
            except MetropolisError:  # Ray gives up early on a busy machine
                if not left:
                    raise

    def _join_replacement(self) -> None:
        if self._replacing is not None:
            self._replacing.join()

    def close(self) -> None:
        """End both nodes."""
        self._join_replacement()
        _end(self._second)
        _end(self._head)

    def _start(
        self, name: str, location: Location, *options: str
    ) -> tuple[subprocess.Popen[bytes], str]:
        """Start a node; return its process and its log once it is up."""
        log = self._folder / f"{name}.log"
        watch = ["/bin/sh", "-c", WATCH, "ray-node", *location.inside]
        command = [*python_command("from ray.scripts.scripts import main; main()"), "start"]
        always = ("--block", "--num-cpus=1", f"--object-store-memory={STORE_BYTES}")
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*watch, *command, *always, "--disable-usage-stats", *location.options, *options],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        deadline_s = time.monotonic() + START_S
        while "runtime started" not in (text := log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() > deadline_s:
                _end(process)
                last = log.read_text(errors="replace").strip().rpartition("\n")[2]
                raise MetropolisError(f"a Ray node did not start: {last} (full log: {log})")
            time.sleep(0.05)
        return process, text


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a node and its descendants; kill those that are left after STOP_S."""
    pids = descendants(process.pid)
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
