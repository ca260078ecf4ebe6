"""Speech on the map leaves it visible, however small it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.viewer.conftest import Serve, Show, history, until
from tests.viewer.test_legibility import DRAWN

TOWN = "metropolis.views.town[0]"
AROUND = f"""() => {{ const town = {TOWN}, {{stage, fold}} = town;
  return {{boxes: town.covered.boxes, radius: town.radius, map: [fold.width * stage.scale[0],
    fold.height * stage.scale[1]], agents: town.labels.map((_, agent) => town.place(agent))}}; }}"""
"""The bubbles, and the map and agents that they should not hide; everything is in view."""


def first_talk(folder: Path) -> tuple[int, str, str]:
    """The step of the first conversation, who begins it, and with which text."""
    for record in history(folder):
        for event in record.get("events", []):
            if event["kind"] == "conversation":
                return record["step"], *event["data"]["lines"][0]
    raise AssertionError("the run has no conversation")


def at_step(page: Any, step: int) -> list[str]:
    """Goes to a step; returns the texts that are drawn."""
    page.evaluate("step => metropolis.moveTo('step', step)", step)
    until(page, "metropolis.chunks.loading.size === 0")
    page.evaluate("metropolis.changed({})")
    return [text for text, *_ in page.evaluate(DRAWN, "town")]


@pytest.mark.parametrize(("width", "height"), [(390, 800), (1280, 800)])
def test_bubbles_leave_the_map_and_agents_visible(
    smallville: Path, serve: Serve, show: Show, width: int, height: int
) -> None:
    page = show(serve(smallville), width=width, height=height)
    begins, *_ = first_talk(smallville)
    marked = 0
    for step in range(begins, begins + 120, 7):
        at_step(page, step)
        shown = page.evaluate(AROUND)
        texts = [box for box in shown["boxes"] if box[3] > 11]
        marked += len(shown["boxes"]) - len(texts)
        assert sum(w * h for _, _, w, h in texts) <= 0.08 * shown["map"][0] * shown["map"][1]
        for left, top, w, h in texts:
            for x, y in shown["agents"]:
                beside = max(left - x, x - left - w, top - y, y - top - h)
                assert beside >= shown["radius"], f"an agent is hidden at step {step}"
    assert marked or width > 390


def test_who_is_asked_is_understood(smallville: Path, serve: Serve, show: Show) -> None:
    """On a phone, the text of an agent that is selected shows on the map."""
    page = show(serve(smallville), width=390)
    step, speaker, text = first_talk(smallville)
    page.evaluate("metropolis.select(0, null)")
    at_step(page, step)
    assert page.evaluate(f"{TOWN}.covered.boxes.length") >= 2  # of both who talk
    page.evaluate("name => metropolis.select(0, metropolis.sides[0].numbers.get(name))", speaker)
    page.wait_for_timeout(500)  # until the canvas has its new size
    first = " ".join(text.split()[:2])
    assert any(drawn.startswith(first) for drawn in at_step(page, step))
