"""A real SGLang, for as long as the tests of this part run: idle, it takes most of a core."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


def environment_of(engine: str) -> tuple[str, str]:
    """The interpreter and the model that `.ci/ENGINE-cpu` has installed; skips without them."""
    names = (f"METROPOLIS_{engine.upper()}_{part}" for part in ("PYTHON", "MODEL"))
    python, model = map(os.environ.get, names)
    if not python or not model:
        pytest.skip(f'{engine} is not installed: eval "$(.ci/{engine}-cpu DIR)" installs it')
    return python, model


def free_port() -> str:
    """A port that no server listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


@pytest.fixture(scope="package")
def sglang_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real SGLang with a tiny random model on the CPU; one request at a time."""
    python, model = environment_of("sglang")
    port = free_port()
    log = tmp_path_factory.mktemp("sglang") / "log"
    start = [sys.executable, "-c", "from metropolis.cli import main; main()", "serve", "sglang"]
    start += ["--python", python, "--model-path", model, "--device", "cpu", "--port", port]
    start += ["--log", str(log), "--", "--max-running-requests", "1"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(start, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert "SGLang serves" in process.stdout.readline(), Path(log).read_text()[-4000:]
        yield f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGTERM)
