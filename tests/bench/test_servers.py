"""Servers that a benchmark starts: one that ends before it serves is told of."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from pathlib import Path

import pytest

from metropolis.bench import METROPOLIS, installed, server
from metropolis.types import MetropolisError

SERVING = """
import http.server
answering = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print(f"something at http://127.0.0.1:{answering.server_port}, and more", flush=True)
answering.serve_forever()
"""


def test_the_url_is_read_and_the_process_ended() -> None:
    with server(installed(SERVING)) as url, urllib.request.urlopen(url) as page:
        assert page.status == 200
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("import sys; sys.exit('warning\\nmetropolis: it needs more')", "^it needs more$"),
        ("raise ValueError('no')", "^ValueError: no$"),
        ("raise SystemExit(3)", "^a server ended with status 3 at its start$"),
        ("print('no address', flush=True)", "^a server ended with status 0 at its start$"),
    ],
)
def test_what_it_said_last_is_told(code: str, sentence: str) -> None:
    with pytest.raises(MetropolisError, match=sentence), server(installed(code)):
        pass


def test_a_missing_package_is_told_in_a_sentence(tmp_path: Path) -> None:
    missing = tmp_path / "aiohttp.py"
    missing.write_text("raise ModuleNotFoundError('No module named aiohttp', name='aiohttp')")
    asked = subprocess.run(
        [*METROPOLIS, "bench", "gateway"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert asked.returncode == 2
    sentence = "metropolis: the gateway needs aiohttp: pip install 'metropolis[gateway]'\n"
    assert asked.stderr == sentence
