"""The Ray cluster of a run: one on this machine, or the user's.

Any client that reaches a Ray cluster can run code in it. Ours listens on loopback only, requires a
token that no file contains, and keeps its files in a private folder; all of it ends with the run.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, services
from ray._private.authentication.authentication_token_setup import (
    maybe_enable_token_auth_if_token_available,
)
from ray._raylet import (  # type: ignore[attr-defined]
    AuthenticationTokenLoader,
    Config,
    GcsClient,
)
from ray.exceptions import AuthenticationError, RayError

from metropolis.types import MetropolisError
from metropolis.workers.ray_folder import ray_folder

LOOPBACK = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
"""Ray's variable that keeps nodes on other machines from joining."""
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
PROBE_S = 10.0
"""How long the head of a cluster may take to respond."""
STARTS = 3
SLOW_START = "timed out during startup"
"""Ray's message after 30 s, which a busy machine may take; Ray has no option for that time."""
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
"""The first bytes of a gRPC client: HTTP/2's preface with empty SETTINGS."""
_FRAME_BYTES, _SETTINGS = 9, 4


def join_ray(count: int | None, address: str | None) -> Callable[[], None]:
    """Join the cluster at `address`, or start one of `count` CPUs; return a function to leave it.

    A process that is in a cluster already stays in it. Raises MetropolisError on failure.
    """
    if ray.is_initialized():
        return lambda: None
    if address in (None, "local"):
        return _start_cluster(count)
    check_address(address)
    _init(address=address)
    return ray.shutdown


def worker_count(count: int | None) -> int:
    """`count`, by default the number of CPUs of the cluster that was joined."""
    return count or max(1, int(ray.cluster_resources().get("CPU", 1)))


def check_address(address: str | None) -> None:
    """Raise MetropolisError unless a Ray at `address` admits us; Ray itself retries for minutes."""
    if address in (None, "local") or ray.is_initialized():
        return
    host, port = _host_and_port(address)
    try:
        if not _speaks_grpc(host, port):
            raise OSError("the server there is not Ray")
    except (OSError, UnicodeError) as error:
        raise MetropolisError(
            f"no Ray answers at {address} ({error}); start it, or name another with --ray-address"
        ) from None
    if address == "auto":
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)  # as Ray does
    try:
        GcsClient(address=f"{host}:{port}")
    except AuthenticationError:
        raise MetropolisError(
            f"the Ray at {address} refuses this user's token; set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN to the cluster's, on every node"
        ) from None
    except RayError as error:
        raise _unusable(address, error) from error


def _host_and_port(address: str) -> tuple[str, int]:
    """Host and port of the head. Raises MetropolisError if `address` is invalid."""
    try:
        host, port = services.extract_ip_port(
            services.canonicalize_bootstrap_address(address) or ""
        )
    except (ValueError, OSError):
        host, port = "", 0
    if not host or "://" in address:
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
        received = b""
        while len(received) < _FRAME_BYTES:
            more = connection.recv(_FRAME_BYTES)
            if not more:
                return False
            received += more
    return received[3] == _SETTINGS


def _start_cluster(count: int | None) -> Callable[[], None]:
    resources = ExitStack()
    folder = resources.enter_context(ray_folder())
    variables = {**LOOPBACK, "RAY_AUTH_MODE": "token"}
    if not any(map(os.environ.get, TOKENS)):
        variables["RAY_AUTH_TOKEN"] = secrets.token_hex(32)

    def leave() -> None:
        ray.shutdown()
        _read_environment()
        resources.close()

    try:
        with _environment(variables):
            _read_environment()
            number = count or os.cpu_count() or 1
            for left in reversed(range(STARTS)):
                try:
                    _init(address="local", num_cpus=number, _temp_dir=folder)
                    break
                except MetropolisError as error:
                    if not left or SLOW_START not in str(error):
                        raise
                    ray.shutdown()
    except BaseException:
        leave()
        raise
    return leave


def _init(**options: Any) -> None:
    # Ray would report a lost node on standard output.
    ray._private.worker.print_to_stdstream = _print_message  # type: ignore[assignment]
    try:
        with _importable(), _keeping_sigterm():
            ray.init(
                include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, **options
            )
    except Exception as error:  # Ray raises plain exceptions, too
        raise _unusable(options["address"], error) from error


def _unusable(address: str, error: Exception) -> MetropolisError:
    received = str(error).strip().partition("\n")[0]
    return MetropolisError(f"Ray ({address}) cannot be used: {received}")


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set `variables`, which the processes that Ray starts inherit."""
    before = {name: os.environ.get(name) for name in variables}
    is_cluster = ray_constants.ENABLE_RAY_CLUSTER
    os.environ.update(variables)
    ray_constants.ENABLE_RAY_CLUSTER = False  # Ray read the variable at its import
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = is_cluster
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _read_environment() -> None:
    """Make Ray read its token settings from the environment again."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


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


@contextmanager
def _keeping_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM.

    Ray sets one that raises SystemExit, and its core one that aborts the process after 3 s.
    """
    ray._private.utils.set_sigterm_handler = lambda _: None
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _print_message(message: Any, ignore_prefix: bool) -> None:  # noqa: ARG001
    """Print Ray's message on standard error; standard output belongs to the run."""
    for line in "\n".join(message["lines"]).splitlines()[:1]:
        sys.stderr.write(f"metropolis: Ray says: {line}\n")
