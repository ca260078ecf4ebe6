"""The Ray cluster of a run: one on this machine, or the user's.

Any client that reaches a Ray cluster can run code in it. Ours listens on loopback only, requires a
token that no file contains, and keeps its files in a private folder; all of it ends with the run.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import ray

from metropolis.types import MetropolisError
from metropolis.workers.ray_import import OWN, TOKENS, environment, is_for

PROBE_S = 10.0
"""How long the head of a cluster may take to respond."""
PORTS = range(1 << 10, 1 << 16)
"""Those that Ray accepts."""
STATUS_S = 60.0
"""How long `ray status` may take."""
STATUS = [sys.executable, "-P", "-c", "from ray.scripts.scripts import main; main()", "status"]
TOKEN_FILE = Path("~/.ray/auth_token")
"""Where Ray keeps a user's token."""
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
"""The first bytes of a gRPC client: HTTP/2's preface with empty SETTINGS."""
_FRAME_BYTES, _SETTINGS = 9, 4


def join_ray(count: int | None, address: str | None) -> Callable[[], None]:
    """Join the cluster at `address`, or start one of `count` CPUs; return a function to leave it.

    Call `check_address` first. Raises MetropolisError on failure.
    """
    if address in (None, "local"):
        return _begin(count)
    return _init(address=address)


def check_address(address: str | None) -> None:
    """Raise MetropolisError unless a Ray at `address` admits us; Ray itself retries for minutes."""
    if ray.is_initialized():
        return
    own = address in (None, "local")
    if not own:
        assert address is not None
        _check_cluster(address)
    if not is_for(own):
        raise MetropolisError(
            "Ray was imported before the run, so a cluster of the run would be open to the "
            "network; call ray.init() before the run, or start the run before importing ray"
            if own
            else "this process has imported Ray for a cluster of its own; join another cluster "
            "from a new process"
        )


def _check_cluster(address: str) -> None:
    place = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    if place != "auto":
        host, port = _place(place)
        try:
            if not _speaks_grpc(host, port):
                raise OSError("the server there is not Ray")
        except (OSError, UnicodeError) as error:
            raise _silent(address, error) from None
    try:
        status = subprocess.run(
            [*STATUS, f"--address={place}"],
            env=os.environ | _mode(address),
            cwd="/",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=STATUS_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _silent(address, error) from None
    if status.returncode == 0:
        return
    said = status.stderr.strip().splitlines() or ["no reason is given"]
    if any("AuthenticationError" in line for line in said):
        raise MetropolisError(
            f"the Ray at {address} refuses this user's token; set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN to the cluster's, on every node"
        )
    raise _silent(address, said[-1])


def _mode(address: str) -> dict[str, str]:
    """The variables under which `ray.init` joins the cluster at `address`."""
    is_set = any(map(os.environ.get, TOKENS)) or TOKEN_FILE.expanduser().exists()
    if address != "auto" or "RAY_AUTH_MODE" in os.environ or not is_set:
        return {}
    return {"RAY_AUTH_MODE": "token"}


def _silent(address: str, why: object) -> MetropolisError:
    return MetropolisError(
        f"no Ray answers at {address} ({why}); start it, or name another with --ray-address"
    )


def _place(address: str) -> tuple[str, int]:
    """Host and port of the head. Raises MetropolisError if `address` is invalid."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    is_port = port.isdecimal() and int(port) in PORTS
    if not host.isprintable() or not host or "/" in host or not is_port:
        raise MetropolisError(
            f"{address!r} is not an address of a Ray cluster; write HOST:PORT of its head, or auto "
            "where one runs"
        )
    return host, int(port)


def _speaks_grpc(host: str, port: int) -> bool:
    """Whether the server speaks gRPC. Raises OSError if there is no server."""
    with socket.create_connection((host, port), PROBE_S) as connection:
        if os.environ.get("RAY_USE_TLS", "0") not in ("0", "false"):
            return True  # Ray holds the certificates
        connection.sendall(_HELLO)
        said = b""
        while len(said) < _FRAME_BYTES:
            more = connection.recv(_FRAME_BYTES)
            if not more:
                return False
            said += more
    return said[3] == _SETTINGS


def _begin(count: int | None) -> Callable[[], None]:
    folder = TemporaryDirectory(prefix="mr-", dir="/tmp", ignore_cleanup_errors=True)
    try:
        with environment(OWN):
            leave = _init(
                address="local", num_cpus=count or os.cpu_count() or 1, _temp_dir=folder.name
            )
    except BaseException:
        folder.cleanup()
        raise

    def leave_and_remove() -> None:
        leave()
        folder.cleanup()

    return leave_and_remove


def _init(**options: Any) -> Callable[[], None]:
    before = sys.stdout
    output: Any = _Output(before)
    sys.stdout = output

    def leave() -> None:
        with redirect_stdout(sys.stderr):  # the last of Ray's messages
            ray.shutdown()
        if sys.stdout is output:
            sys.stdout = before

    try:
        with _importable():
            ray.init(
                include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, **options
            )
    except BaseException as error:
        leave()
        if isinstance(error, Exception):  # Ray raises plain exceptions, too
            raise _unusable(options["address"], error) from error
        raise
    return leave


class _Output:
    """Standard output, which belongs to the run: what Ray's threads print goes to standard error.

    Ray reports a lost node.
    """

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def __getattr__(self, name: str) -> Any:
        from_ray = threading.current_thread().name.startswith("ray_")
        return getattr(sys.stderr if from_ray else self._output, name)


def _unusable(address: str, error: Exception) -> MetropolisError:
    said = str(error).strip().partition("\n")[0]
    return MetropolisError(f"Ray ({address}) cannot be used: {said}")


@contextmanager
def _importable() -> Iterator[None]:
    """Keep Ray's workers from importing from the current folder if this process does not.

    Ray's workers import from the folder it starts in; a clone of metropolis has no compiled part.
    """
    here = os.getcwd()
    if not {"", here}.isdisjoint(sys.path):
        yield
        return
    os.chdir(Path(__file__).parents[2])
    try:
        yield
    finally:
        os.chdir(here)
