"""Real engines with a tiny random model on the CPU; each runs one request at a time."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from metropolis.bench import METROPOLIS

VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_RESPONSES_API_STORE": "1",
    # The worker computes in the engine's process: between two of them, both would spin.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
# In bfloat16, vLLM's default, a continued answer may differ from an undisturbed one (7 of 30 did):
# the prefill of what was said does not round as its decoding did.
FLAGS = (
    "--scheduling-policy", "priority", "--max-num-seqs", "1", "--enforce-eager",
    "--dtype", "float32", "--no-enable-chunked-prefill", "--max-num-batched-tokens", "16384",
)  # fmt: skip
START_S = 300.0


def environment_of(engine: str) -> tuple[str, str]:
    """The interpreter and the model that `.ci/ENGINE-cpu` has installed; skips without them."""
    python, model = _settings(engine)
    if not python or not model:
        pytest.skip(f'{engine} is not installed: eval "$(.ci/{engine}-cpu DIR)" installs it')
    if not _is_complete(model):
        pytest.skip(f"{engine} is not installed: .ci/{engine}-cpu has failed")
    return python, model


def packages_of(engine: str) -> Path | None:
    """The folder of packages of that environment; None without it."""
    python, model = _settings(engine)
    if not python or not model or not _is_complete(model):
        return None
    return next(Path(python).parent.parent.glob("lib/python*/site-packages"), None)


def _settings(engine: str) -> tuple[str | None, str | None]:
    variable = f"METROPOLIS_{engine.upper()}"
    return os.environ.get(f"{variable}_PYTHON"), os.environ.get(f"{variable}_MODEL")


def _is_complete(model: str) -> bool:
    """Whether `.ci/ENGINE-cpu` has installed all; waits while it installs."""
    folder = Path(model).parent
    with (folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # .ci/ENGINE-cpu holds it while it installs
    return (folder / "complete").exists()


def free_port() -> str:
    """A port that no server listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


@pytest.fixture(scope="session")
def sglang_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real SGLang, which sleeps when it is idle: it lives as long as the tests."""
    python, model = environment_of("sglang")
    port = free_port()
    log = tmp_path_factory.mktemp("sglang") / "log"
    start = [*METROPOLIS, "serve", "sglang"]
    start += ["--python", python, "--model-path", model, "--device", "cpu", "--port", port]
    start += ["--log", str(log), "--", "--max-running-requests", "1", "--sleep-on-idle"]
    start += ["--served-model-name", "tiny"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(start, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert "SGLang serves" in process.stdout.readline(), Path(log).read_text()[-4000:]
        yield f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real vLLM."""
    python, model = environment_of("vllm")
    port = free_port()
    log = tmp_path_factory.mktemp("vllm") / "log"
    start = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    start += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", port, *FLAGS]
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            start, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **VARIABLES},
            start_new_session=True,
        )  # fmt: skip
        try:
            began_s = time.monotonic()
            while not _answers(url):
                lasts = process.poll() is None and time.monotonic() - began_s < START_S
                assert lasts, log.read_text(errors="replace")[-4000:]
                time.sleep(0.2)
            yield url
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
