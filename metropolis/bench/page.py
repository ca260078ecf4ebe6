"""Opening and scrubbing of the viewer's page in a real browser: seconds, frame times and memory."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from metropolis.bench import METROPOLIS, need, server
from metropolis.tables import print_whole
from metropolis.types import MetropolisError

VIEWS = ("town", "steps", "calls", "social")
SCRUBS = 200
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
    "--enable-precise-memory-info",
)  # fmt: skip
OPEN_S = 60.0
SETTLE_MS = 1500
"""Wait for the chunks of a view to arrive."""
SCRUB = """async ([view, scrubs]) => {
  const page = metropolis;
  const nextFrame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const milliseconds = [];
  await nextFrame();
  for (let number = 0; number < scrubs; number += 1) {
    const began = performance.now();
    page.state.set({at: (page.transport.end * ((number * 61) % scrubs)) / scrubs});
    page.draw();
    await nextFrame();
    milliseconds.push(performance.now() - began);
  }
  return {milliseconds, heap: performance.memory?.usedJSHeapSize ?? 0};
}"""
"""Leaps to and fro over the whole run; the time of each leap includes the wait for the next frame,
so 16.7 ms are 60 frames a second."""


@click.command(name="page")
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--beside", help="As for metropolis view.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of a table.")
def command(run: Path, beside: str | None, as_json: bool) -> None:
    """Open RUN in Chromium, and scrub over all of it in every view.

    Needs Chromium and playwright. Real times of this machine, without a GPU.
    """
    need("test", "playwright")
    measured = _measured(run, beside)
    if as_json:
        click.echo(json.dumps(measured, indent=2))
        return
    table = Table("view", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("frame p50, ms", "p95, ms", "worst, ms", "memory, MB"):
        table.add_column(name, justify="right")
    for name, row in measured["views"].items():
        figures = (row["p50_ms"], row["p95_ms"], row["worst_ms"], row["heap_mb"])
        table.add_row(name, *(f"{value:,.1f}" for value in figures))
    print_whole(table, Console())
    click.echo(f"opened in {measured['open_s']:.2f} s; {SCRUBS} leaps in each view")


def _measured(run: Path, beside: str | None) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        raise MetropolisError("there is no chromium on this machine; install it with your system")
    words = [*METROPOLIS, "view", str(run), "--no-open"]
    words += ["--beside", beside] if beside else []
    with server(words) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=[*ARGUMENTS])
        page = browser.new_page(viewport={"width": 1360, "height": 860})
        began_s = time.perf_counter()
        page.goto(url)
        while page.evaluate("document.body.dataset.state") == "loading":
            if time.perf_counter() - began_s > OPEN_S:
                raise MetropolisError(f"the page did not open within {OPEN_S:g} s")
        open_s = time.perf_counter() - began_s
        views = {name: _scrubbed(page, name) for name in VIEWS}
        browser.close()
    return {"open_s": open_s, "views": views}


def _scrubbed(page: Any, view: str) -> dict[str, float]:
    page.evaluate("view => metropolis.state.set({view})", view)
    page.wait_for_timeout(SETTLE_MS)
    found = page.evaluate(SCRUB, [view, SCRUBS])
    times = sorted(found["milliseconds"])
    return {
        "p50_ms": times[len(times) // 2],
        "p95_ms": times[int(0.95 * len(times))],
        "worst_ms": times[-1],
        "heap_mb": found["heap"] / 1e6,
    }
