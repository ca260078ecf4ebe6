"""The page with hostile texts, of runs that go on, that were killed, in a file, and of branches."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from metropolis.bench import METROPOLIS
from metropolis.timeline.reader import read_timeline
from metropolis.types import MetropolisError
from tests.viewer import hostile
from tests.viewer.conftest import TIMEOUT_S, Serve, Show, run_metropolis, until

HOSTILE = Path(hostile.__file__)
VIEWS = ("town", "steps", "calls", "social")


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "<script>window.attacked=1<"
    run_metropolis("run", HOSTILE, "--out", folder, "--keep-text", "--quiet")
    return folder


def look_everywhere(page: Any) -> None:
    """Open every view, person, call, and search."""
    page.evaluate("metropolis.moveTo('time', metropolis.transport.end / 2)")
    for view in VIEWS:
        page.click(f"#tab-{view}")
        page.wait_for_timeout(100)
        for agent in range(len(hostile.NAMES)):
            page.evaluate("agent => metropolis.select(0, agent)", agent)
            page.evaluate("metropolis.views.town[0].hovered = 0")
            page.evaluate("metropolis.invalidate(); metropolis.draw()")
    page.evaluate(
        """() => { for (const calls of metropolis.sides[0].callsBetween(-Infinity, Infinity))
          for (let row = 0; row < calls.count; row += 7) metropolis.openCall(0, calls, row); }"""
    )
    page.wait_for_timeout(200)
    page.keyboard.press("Escape")
    for text in hostile.TEXTS:
        page.evaluate("text => metropolis.search.find(text)", text[:40])
        until(page, "!metropolis.search.isRunning")


def test_texts_are_never_executed(attack: Path, serve: Serve, show: Show) -> None:
    page = show(serve(attack))
    look_everywhere(page)
    assert page.evaluate("window.attacked") is None
    page.evaluate("metropolis.select(0, 0)")
    assert page.inner_text("#panel h2") == hostile.NAMES[0]
    assert (
        page.evaluate("document.querySelectorAll('#panel img, #panel script, #panel svg').length")
        == 0
    )
    page.evaluate("text => metropolis.search.find(text)", "onerror")
    until(page, "!metropolis.search.isRunning")
    assert hostile.TEXTS[1] in page.inner_text("#panel")


def test_texts_are_never_executed_in_a_file(attack: Path, show: Show, tmp_path: Path) -> None:
    run_metropolis("view", attack, "--out", tmp_path / "page.html")
    page = show((tmp_path / "page.html").as_uri())
    look_everywhere(page)
    assert page.evaluate("window.attacked") is None


@pytest.mark.parametrize("width", [390, 1200])
def test_long_texts_stay_in_their_places(
    attack: Path, serve: Serve, show: Show, width: int
) -> None:
    page = show(serve(attack), width=width)
    page.evaluate("metropolis.select(0, 1)")
    for step in range(hostile.STEPS):
        page.evaluate("step => metropolis.moveTo('step', step)", step)
        page.evaluate("metropolis.panel.update()")
        for place in ("#panel", "#legend", "html"):
            wide, room = page.evaluate(
                "place => { const {scrollWidth, clientWidth} = document.querySelector(place);"
                " return [scrollWidth, clientWidth]; }",
                place,
            )
            assert wide <= room, f"{place} at step {step}"


def test_a_file_shows_what_the_server_shows(
    smallville: Path, serve: Serve, show: Show, tmp_path: Path
) -> None:
    run_metropolis("view", smallville, "--out", tmp_path / "page.html")
    shown = []
    for url in (serve(smallville), (tmp_path / "page.html").as_uri()):
        page = show(url)
        page.evaluate("metropolis.moveTo('time', metropolis.transport.end / 3)")
        until(page, "metropolis.chunks.loading.size === 0")
        page.evaluate("metropolis.changed({})")
        page.evaluate("metropolis.select(0, 3)")
        page.evaluate("metropolis.panel.update()")
        shown.append(
            [page.evaluate("[...metropolis.moments[0].steps]")]
            + [page.inner_text(place) for place in ("#facts", "#reading", "#panel")]
        )
    assert shown[0] == shown[1]


@contextmanager
def stub(folder: Path, mean_ms: int) -> Iterator[str]:
    """A model server whose answers take that time."""
    command = [*METROPOLIS, "bench", "stub-server", "--mean-ms", str(mean_ms), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield next(word for word in line.split() if word.startswith("http"))
        finally:
            process.kill()


@contextmanager
def live_run(folder: Path, server: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A run before that server."""
    command = [
        *METROPOLIS, "run", "minimal", "--agents", "12", "--steps", "4000", "--llm", server,
        "--out", str(folder), "--quiet", *words,
    ]  # fmt: skip
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def url_of(process: subprocess.Popen[str]) -> str:
    """The URL that a run with --view prints."""
    assert process.stderr is not None
    for line in process.stderr:
        for word in line.split():
            if word.startswith("http://127.0.0.1:") and "#token=" in word:
                return word
    raise AssertionError("the run printed no URL")


def test_a_run_is_followed_paused_and_stopped(show: Show, tmp_path: Path) -> None:
    with stub(tmp_path, 60) as server, live_run(tmp_path / "run", server, "--view") as process:
        page = show(url_of(process))
        floor = "metropolis.moments[0].floor"
        until(page, f"{floor} > 5")
        first = page.evaluate(floor)
        until(page, f"{floor} > {first}")
        until(page, "document.getElementById('live-numbers').textContent.includes('calls')")
        page.click("#run-pause")
        until(page, "!document.getElementById('run-resume').hidden")
        page.wait_for_timeout(1500)
        paused = page.evaluate("metropolis.sides[0].meta.calls")
        page.wait_for_timeout(1500)
        assert page.evaluate("metropolis.sides[0].meta.calls") == paused
        page.click("#run-resume")
        until(page, f"metropolis.sides[0].meta.calls > {paused}")
        page.once("dialog", lambda dialog: dialog.accept())
        page.evaluate("window.confirm = () => true")
        page.click("#run-stop")
        assert process.wait(TIMEOUT_S) == 130
        until(page, "document.getElementById('live-state').textContent.includes('has ended')")
        assert page.evaluate("document.getElementById('run-stop').hidden")
        assert page.evaluate("document.getElementById('to-end').hidden")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["world"] == "minimal"


def recorded(folder: Path) -> int:
    """The number of agent-steps in the timeline of a run that is going on."""
    try:
        return len(read_timeline(folder / "timeline").executions.step)
    except MetropolisError:  # it has not begun
        return 0


def test_a_killed_run_can_be_viewed(serve: Serve, show: Show, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with stub(tmp_path, 20) as server, live_run(folder, server) as process:
        end_s = time.monotonic() + TIMEOUT_S
        while recorded(folder) < 600:
            assert time.monotonic() < end_s
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    page = show(serve(folder))
    executions = read_timeline(folder / "timeline").executions
    meta = page.evaluate("metropolis.sides[0].meta")
    assert meta["steps"] > 0
    assert not meta["live"]
    page.evaluate("metropolis.moveTo('time', metropolis.transport.end)")
    until(page, "metropolis.chunks.loading.size === 0")
    page.evaluate("metropolis.changed({})")
    done = executions.committed_s <= meta["end_s"]
    front = executions.step[done].max() + 1
    assert page.evaluate("metropolis.moments[0].front") == front
    for view in VIEWS:
        page.click(f"#tab-{view}")
        page.wait_for_timeout(100)


def test_a_branch_is_shown_beside_its_run(
    smallville: Path, branch: Path, serve: Serve, show: Show
) -> None:
    page = show(serve(smallville, "--beside", branch))
    until(page, "metropolis.differences?.isComplete")
    differences = page.evaluate("metropolis.differences")
    histories = [
        [json.loads(line)["is"] for line in (folder / "history.jsonl").read_text().splitlines()[1:]]
        for folder in (smallville, branch)
    ]
    first = next(
        (one["step"] for one, other in zip(*histories, strict=False) if one != other), None
    )
    assert first is not None
    assert first >= 400
    assert differences["first"] >= first
    assert page.evaluate("metropolis.state.basis") == "step"
    page.evaluate("step => metropolis.moveTo('step', step + 30)", differences["first"])
    until(page, "metropolis.chunks.loading.size === 0")
    marked = page.evaluate(
        """() => { const m = metropolis.moments[0], side = metropolis.sides[0]; let count = 0;
          for (let a = 0; a < side.agents; a += 1) count += metropolis.differs(side, a, m);
          return count; }"""
    )
    assert marked > 0


def test_a_shorter_run_is_equal_up_to_its_end(
    smallville: Path, serve: Serve, show: Show, tmp_path: Path
) -> None:
    shorter = tmp_path / "shorter"
    run_metropolis(
        "run", "smallville", "--steps", "60", "--instances", "2", "--no-timeline", "--quiet",
        "--out", shorter,
    )  # fmt: skip
    page = show(serve(shorter, "--beside", smallville))
    until(page, "metropolis.differences?.isComplete")
    assert page.inner_text("#panel h2") == "No difference"
    page.evaluate("metropolis.moveTo('step', 100)")
    until(page, "metropolis.chunks.loading.size === 0")
    page.evaluate("metropolis.changed({})")
    for side in (0, 1):
        ringed = page.evaluate(
            """at => { const {sides, moments} = metropolis; return sides[at].meta.agents.filter(
              (_, agent) => metropolis.differs(sides[at], agent, moments[at])); }""",
            side,
        )
        assert ringed == []
    assert "60 steps / 560 steps" in page.inner_text("#facts")
    assert page.inner_text("#reading").startswith("step 100 of 560 ")
    assert page.inner_text("#note").startswith("shorter: This run recorded no timeline")


def test_a_run_with_prices_shows_its_cost(serve: Serve, show: Show, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_metropolis(
        "run", "minimal", "--steps", "30", "--out", folder, "--quiet", "--price-in", "3",
        "--price-out", "15",
    )  # fmt: skip
    calls = read_timeline(folder / "timeline").calls
    cost = (3 * calls.prompt_tokens.sum() + 15 * calls.output_tokens.sum()) / 1e6
    page = show(serve(folder))
    page.click("#tab-calls")
    until(page, "metropolis.views.calls[0].strips.length > 0")  # it has a size
    until(page, "metropolis.chunks.loading.size === 0")
    names, most = page.evaluate(
        """() => { const view = metropolis.views.calls[0];
          const lines = view.measured(0, view.end, 900);
          return [view.strips.map(({name}) => name), Math.max(...lines[4][0])]; }"""
    )
    assert "cost so far" in names
    assert most == pytest.approx(cost)
