"""A real Chromium before real viewers, which run as users start them."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metropolis.bench import METROPOLIS
from metropolis.trace.parquet import read_trace

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--no-first-run",
]  # fmt: skip
TIMEOUT_S = 20


def run_metropolis(*words: str | Path) -> str:
    """Run a command to its end; returns what it printed."""
    ended = subprocess.run(
        [*METROPOLIS, *map(str, words)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser. It occupies the thread's event loop: no test of its module may use asyncio."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if found is None:
        pytest.skip("no Chromium: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield browser
        browser.close()


def until(page: Any, condition: str) -> None:
    """Wait for a condition in JavaScript; the page's policy forbids `wait_for_function`."""
    end_s = time.monotonic() + TIMEOUT_S
    while not page.evaluate(condition):
        assert time.monotonic() < end_s, condition
        page.wait_for_timeout(20)


def history(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "history.jsonl").read_text().splitlines()[1:]
    return [json.loads(line)["is"] for line in lines]


def positions_of(folder: Path) -> np.ndarray:
    """(STEPS + 1, agents, 2): where agents are at the beginning of each step, and at the end."""
    trace = read_trace(folder)
    last = trace.positions[-1].copy()
    for name, body in history(folder)[-1].get("writes", {}).items():
        if name in trace.meta.agents:
            last[trace.meta.agents.index(name)] = body["at"]
    return np.concatenate([trace.positions, last[np.newaxis]])


Show = Callable[..., Any]
"""Opens a URL; returns the page once it is ready."""


@pytest.fixture
def show(chromium: Any) -> Iterator[Show]:
    """Opens pages. Fails if one has an error, opens a dialog, or asks another machine."""
    faults: list[str] = []
    contexts = []

    def open_page(url: str, width: int = 1200, height: int = 800, **options: Any) -> Any:
        context = chromium.new_context(
            viewport={"width": width, "height": height}, reduced_motion="reduce", **options
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * TIMEOUT_S)
        origin = url.split("/#")[0]

        def check_request(request: Any) -> None:
            if not request.url.startswith((origin, "data:", "blob:")):
                faults.append(f"a request to {request.url}")

        def refuse(dialog: Any) -> None:
            faults.append(f"a dialog: {dialog.message}")
            dialog.dismiss()

        page.on("request", check_request)
        page.on("dialog", refuse)
        page.on("pageerror", lambda error: faults.append(f"an error: {error.stack}"))
        page.goto(url)
        until(page, "document.body.dataset.state !== 'loading'")
        assert page.evaluate("document.body.dataset.state") == "ready", page.inner_text("#failure")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts `metropolis view WORDS`; returns its URL."""
    with ExitStack() as stack:

        def start(*words: str | Path) -> str:
            command = [*METROPOLIS, "view", *map(str, words), "--no-open"]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:"), process.communicate()
            return url

        yield start


STEPS = 560


@pytest.fixture(scope="session")
def smallville(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 25 residents for 560 steps, some of which talk to each other, with all texts."""
    folder = tmp_path_factory.mktemp("viewer") / "smallville"
    run_metropolis(
        "run", "smallville", "--steps", str(STEPS), "--keep-text", "--instances", "2", "--out",
        folder, "--quiet",
    )  # fmt: skip
    return folder


@pytest.fixture(scope="session")
def branch(smallville: Path) -> Path:
    """A branch of the run from step 400 on, with another seed."""
    folder = smallville.parent / "branch"
    run_metropolis(
        "fork", smallville, "--at", "400", "--seed", "7", "--steps", "520", "--out", folder,
        "--quiet",
    )  # fmt: skip
    return folder


@pytest.fixture(scope="session")
def race(smallville: Path) -> Path:
    """The run's trace, replayed in lockstep and out of order."""
    folder = smallville.parent / "race"
    run_metropolis(
        "replay", smallville / "trace.parquet", "--modes", "lockstep,versioned", "--instances",
        "2", "--record", folder,
    )  # fmt: skip
    return folder
