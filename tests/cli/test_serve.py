"""`metropolis serve sglang`, with a small program instead of SGLang."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from metropolis.bench import METROPOLIS
from tests.commands import Command
from tests.waiting import eventually, has_ended

STAND_IN = """
import http.server, json, os, subprocess, sys, time

behaviour, report = os.environ["BEHAVIOUR"], os.environ["REPORT"]
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
with open(report, "w") as file:
    json.dump({"argv": sys.argv[1:], "pids": [os.getpid(), child.pid],
               "omp": os.environ.get("OMP_NUM_THREADS")}, file)
print("loading weights", flush=True)
if behaviour == "dies":
    sys.exit("out of memory")
if behaviour == "hangs":
    time.sleep(60)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health_generate" else 404)
        self.end_headers()
        if behaviour == "dies later":
            print("segmentation fault", flush=True)
            os._exit(3)

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `python -m sglang.launch_server` run the program above; return its report file."""
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("REPORT", str(tmp_path / "report"))
    monkeypatch.setenv("BEHAVIOUR", "serves")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path / "report"


def arguments(port: int, *more: str) -> list[str]:
    return ["serve", "sglang", "--model-path", "tiny", "--port", str(port), *more]


def _heed_interrupts() -> None:
    """Restore SIGINT: a shell's background jobs and their children ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def serving(stand_in: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    options = arguments(port, "--device", "cpu", "--", "--mem-fraction-static", "0.5")
    with subprocess.Popen(
        [*METROPOLIS, *options], stdout=subprocess.PIPE, text=True, preexec_fn=_heed_interrupts
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == (
            f"SGLang serves tiny at http://127.0.0.1:{port}; "
            f"use it with --llm sglang:http://127.0.0.1:{port}\n"
        )
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_signal_stops_the_server_and_its_children(
    number: signal.Signals, status: int, serving: subprocess.Popen[str], stand_in: Path
) -> None:
    report = json.loads(stand_in.read_text())
    assert not any(map(has_ended, report["pids"]))
    serving.send_signal(number)
    assert serving.wait(30) == status
    assert eventually(lambda: all(map(has_ended, report["pids"])))


def test_priorities_are_on_and_flags_of_the_user_come_last(
    serving: subprocess.Popen[str], stand_in: Path
) -> None:
    report = json.loads(stand_in.read_text())
    flags = report["argv"]
    assert {"--enable-priority-scheduling", "--schedule-low-priority-values-first"} <= set(flags)
    assert flags[-2:] == ["--mem-fraction-static", "0.5"]
    assert report["omp"] == "1"


@pytest.mark.parametrize(
    ("behaviour", "sentence", "last"),
    [
        ("dies", "SGLang ended with status 1 before it answered:", "out of memory"),
        ("dies later", "SGLang ended with status 3", "segmentation fault"),
        ("hangs", "did not answer at http://127.0.0.1:", "loading weights"),
    ],
)
def test_a_server_that_fails_is_said_with_the_end_of_its_log(
    behaviour: str,
    sentence: str,
    last: str,
    port: int,
    stand_in: Path,
    metropolis: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BEHAVIOUR", behaviour)
    wait_s = "2" if behaviour == "hangs" else "60"
    said = metropolis(*arguments(port, "--wait-s", wait_s))
    assert said.status == 1
    assert sentence in said.err
    assert said.err.endswith(f"{last}\n")
    pids = json.loads(stand_in.read_text())["pids"]
    assert eventually(lambda: all(map(has_ended, pids)))


def test_the_log_can_be_kept(
    port: int, stand_in: Path, tmp_path: Path, metropolis: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEHAVIOUR", "dies")
    metropolis(*arguments(port, "--log", str(tmp_path / "log")))
    assert (tmp_path / "log").read_text() == "loading weights\nout of memory\n"
    said = metropolis(*arguments(port, "--log", str(tmp_path))).refusal
    assert said.count("\n") == 2
    assert f"--log: {tmp_path} cannot be written" in said


def test_without_sglang_there_is_one_sentence(port: int, metropolis: Command) -> None:
    assert metropolis(*arguments(port, "--python", sys.executable)).refusal == (
        f"metropolis: SGLang is not installed for {sys.executable}; install it "
        "(pip install 'metropolis[sglang]', on Linux with CUDA), or name the interpreter that has "
        "it with --python\n"
    )
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["sglang"][0].startswith("sglang>=")
    refusal = metropolis(*arguments(port, "--python", os.devnull)).refusal
    assert "cannot be run: Permission denied; name a Python interpreter" in refusal


def test_a_port_in_use_is_said_before_anything_starts(stand_in: Path, metropolis: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        said = metropolis(*arguments(port)).refusal
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use; choose another" in said
    assert not stand_in.exists()
