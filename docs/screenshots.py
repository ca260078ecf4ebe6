"""Makes the screenshots of docs/images again: `python docs/screenshots.py` (Chromium, playwright).

Runs SmallVille for two hours without a model, replays it in lockstep and out of order, and looks at
both in the viewer.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from metropolis.bench import METROPOLIS, server

IMAGES = Path(__file__).parent / "images"
SIZE = {"width": 1280, "height": 800}
BUSIEST = """() => {
  const {sides, transport} = metropolis;
  const steps = new Int32Array(sides[0].agents);
  let best = [0, 0];
  for (let part = 40; part < 95; part += 1) {
    const time = (transport.end * part) / 100;
    const floor = sides[0].stepsAt(time, steps);
    const lead = Math.max(...steps) - floor;
    const waits = [...steps].filter((step, agent) =>
      sides[0].execution(agent, step)?.dispatched > time).length;
    if (lead * waits > best[0]) best = [lead * waits, time];
  }
  metropolis.moveTo("time", best[1]);
}"""
"""Goes to the time at which leads are long and many wait."""


def run(*words: str | Path) -> None:
    """Run a metropolis command."""
    subprocess.run([*METROPOLIS, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def page_of(browser: Browser, folder: Path, **options: Any) -> Iterator[Any]:
    """The viewer's page of a folder."""
    with server([*METROPOLIS, "view", str(folder), "--no-open"]) as url:
        page = browser.new_context(viewport=SIZE, device_scale_factor=1.5, **options).new_page()
        try:
            page.goto(url)
            while page.evaluate("document.body.dataset.state") == "loading":
                page.wait_for_timeout(50)
            page.wait_for_timeout(1000)
            yield page
        finally:
            page.context.close()


def shoot(page: Any, name: str) -> None:
    """Write an image."""
    page.wait_for_timeout(1000)
    page.screenshot(path=IMAGES / f"{name}.png")


def main() -> None:
    """Make all images."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        town, race = Path(folder) / "smallville", Path(folder) / "race"
        run(
            "run", "smallville", "--hours", "3", "--instances", "2", "--keep-text", "--quiet",
            "--out", town,
        )  # fmt: skip
        run(
            "replay", town / "trace.parquet", "--modes", "lockstep,versioned", "--instances", "2",
            "--record", race,
        )  # fmt: skip
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        with page_of(browser, town) as page:
            page.evaluate(BUSIEST)
            shoot(page, "town")
            page.evaluate("metropolis.state.set({view: 'steps'})")
            shoot(page, "steps")
            page.evaluate("metropolis.state.set({view: 'calls'})")
            page.wait_for_timeout(500)
            page.evaluate("metropolis.views.calls[0].zoom(4, 500)")
            shoot(page, "calls")
            page.evaluate("metropolis.moveTo('step', metropolis.transport.end)")
            page.evaluate("metropolis.state.set({view: 'social'})")
            page.wait_for_timeout(500)
            page.evaluate("metropolis.views.social[0].trace('library')")
            shoot(page, "social")
        with page_of(browser, town, color_scheme="dark") as page:
            page.evaluate(BUSIEST)
            page.evaluate(
                "metropolis.select(0, [...metropolis.moments[0].blockedBy].findIndex((b) => b >= 0))"  # noqa: E501
            )
            shoot(page, "person")
        with page_of(browser, race) as page:
            page.evaluate("metropolis.moveTo('time', 0.6 * metropolis.sides[1].meta.end_s)")
            shoot(page, "race")


if __name__ == "__main__":
    main()
