"""Real engines: the SGLang of the backends' tests, and a vLLM for the duration of a module."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.llm.conftest import environment_of, free_port, sglang_url

__all__ = ["sglang_url"]

VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_RESPONSES_API_STORE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
FLAGS = (
    "--scheduling-policy", "priority", "--max-num-seqs", "1", "--enforce-eager",
    "--no-enable-chunked-prefill", "--max-num-batched-tokens", "16384",
)  # fmt: skip
START_S = 300.0


@pytest.fixture(scope="module")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real vLLM with a tiny random model on the CPU; it runs one request at a time."""
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
