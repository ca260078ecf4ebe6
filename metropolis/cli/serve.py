"""`metropolis serve`: start an LLM server with the settings that metropolis needs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

import click
from rich.console import Console

from metropolis.cli.host import host_option
from metropolis.cli.serve_torch import command as serve_torch
from metropolis.command_options import Number
from metropolis.listening import cannot_listen
from metropolis.process_group import ProcessGroup
from metropolis.types import MetropolisError

PRIORITIES = (
    "--schedule-policy", "fcfs", "--enable-priority-scheduling",
    "--schedule-low-priority-values-first",
)  # fmt: skip
"""Waiting requests run in order of step, then of arrival."""
ALWAYS = (*PRIORITIES, "--enable-metrics", "--constrained-json-disable-any-whitespace")
CPU = (
    "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
    "--disable-overlap-schedule", "--disable-cuda-graph", "--skip-server-warmup",
    "--mem-fraction-static", "0.2", "--max-total-tokens", "40000",
)  # fmt: skip
CPU_VARIABLES = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
"""One thread: with small models, more threads only wait for each other."""
POLL_S = 0.5
STOP_S = 20.0
LOG_LINES = 15


@click.group(name="serve")
def command() -> None:
    """Start an LLM server and keep it running until Ctrl-C."""


command.add_command(serve_torch)


@command.command(name="sglang")
@click.option("--model-path", required=True, help="The model: a folder, or a name on Hugging Face.")
@host_option
@click.option(
    "--port", type=click.IntRange(1, 65535), default=30000, show_default=True, help="Port."
)
@click.option(
    "--device", type=click.Choice(("cuda", "cpu")), default="cuda", show_default=True,
    help="Device of the model.",
)  # fmt: skip
@click.option(
    "--python", type=click.Path(path_type=Path), default=sys.executable,
    help="Python interpreter whose environment has SGLang. [default: this one]",
)  # fmt: skip
@click.option(
    "--wait-s", type=Number(1), default=1800.0, show_default=True,
    help="Maximum seconds from the start until the server answers.",
)  # fmt: skip
@click.option("--log", type=click.Path(path_type=Path), help="Write the server's log to this file.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def sglang(
    model_path: str,
    host: str,
    port: int,
    device: str,
    python: Path,
    wait_s: float,
    log: Path | None,
    flags: tuple[str, ...],
) -> None:
    """Start SGLang with priorities enabled, lowest step first.

    FLAGS after -- are passed to SGLang's launch_server and override the flags set here.
    """
    _require_sglang(python)
    _require_free(host, port)
    launch = [str(python), "-m", "sglang.launch_server", "--model-path", model_path]
    launch += ["--host", host, "--port", str(port), "--device", device, *ALWAYS]
    launch += [*(CPU if device == "cpu" else ()), *flags]
    variables = {**CPU_VARIABLES, **os.environ} if device == "cpu" else dict(os.environ)
    url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
    click.echo(f"starting SGLang with {model_path}", err=True)
    with _log_at(log) as output, _running(launch, variables, output) as server:
        _wait_until_healthy(server, url, wait_s, output)
        click.echo(f"SGLang serves {model_path} at {url}; use it with --llm sglang:{url}")
        click.echo("Ctrl-C stops it", err=True)
        status = server.wait()
        raise click.ClickException(f"SGLang ended with status {status}:\n{_tail(output)}")


def _require_sglang(python: Path) -> None:
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"
    try:
        found = subprocess.run([str(python), "-c", look], check=False).returncode == 0
    except OSError as error:
        raise MetropolisError(
            f"--python: {python} cannot be run: {error.strerror}; name a Python interpreter"
        ) from None
    if not found:
        raise MetropolisError(
            f"SGLang is not installed for {python}; install it (pip install 'metropolis[sglang]', "
            "on Linux with CUDA), or name the interpreter that has it with --python"
        )


def _require_free(host: str, port: int) -> None:
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise cannot_listen(host, port, error) from None


def _log_at(path: Path | None) -> IO[bytes]:
    if path is None:
        return tempfile.TemporaryFile()
    try:
        return path.open("w+b")
    except OSError as error:
        raise MetropolisError(f"--log: {path} cannot be written: {error.strerror}") from None


@contextmanager
def _running(
    launch: Sequence[str], variables: dict[str, str], output: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server until the block or this process ends."""
    former = signal.signal(signal.SIGTERM, _terminate)
    group = ProcessGroup(launch, variables, output)
    try:
        yield group.leader
    finally:
        group.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C kills
            group.leader.wait(STOP_S)
        group.close()
        signal.signal(signal.SIGTERM, former)


def _terminate(signal_number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signal_number)


def _wait_until_healthy(
    server: subprocess.Popen[bytes], url: str, wait_s: float, output: IO[bytes]
) -> None:
    began = time.monotonic()
    with Console(stderr=True).status("starting SGLang") as line:
        while not _is_healthy(url):
            waited_s = time.monotonic() - began
            if server.poll() is not None:
                raise click.ClickException(
                    f"SGLang ended with status {server.returncode} before it answered:\n"
                    f"{_tail(output)}"
                )
            if waited_s > wait_s:
                raise click.ClickException(
                    f"SGLang did not answer at {url} within {wait_s:g} s; allow more with "
                    f"--wait-s:\n{_tail(output)}"
                )
            latest = _tail(output, 1)[:100].replace("[", "(")
            line.update(f"starting SGLang, {waited_s:.0f} s: {latest}")
            time.sleep(POLL_S)


def _is_healthy(url: str) -> bool:
    """Return whether the server generates a token."""
    try:
        with urllib.request.urlopen(f"{url}/health_generate", timeout=30) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _tail(output: IO[bytes], lines: int = LOG_LINES) -> str:
    """Return the last lines of the server's log."""
    end = os.fstat(output.fileno()).st_size
    text = os.pread(output.fileno(), 1 << 14, max(0, end - (1 << 14))).decode(errors="replace")
    return "\n".join(text.splitlines()[-lines:])
