"""Calls and Steps zoom and pan alike: along the axis, or rows while the pointer is on names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.viewer.conftest import Serve, Show, until

SEEN = """([view, side, x, y]) => { const rows = metropolis.views[view][side], {stage} = rows;
  return {x: stage.fromX(x), y: stage.fromY(y), scale: [...stage.scale], offset: [...stage.offset],
    left: stage.fromX(rows.left), right: stage.fromX(stage.width - rows.right), end: rows.end}; }"""


def seen(page: Any, view: str, x: float = 400, y: float = 150, side: int = 0) -> dict[str, Any]:
    """What a view shows at a place, and from where to where."""
    found: dict[str, Any] = page.evaluate(SEEN, [view, side, x, y])
    return found


def opened(page: Any, view: str) -> tuple[float, float]:
    """Opens a view in the middle of the run; returns where its first canvas is."""
    page.evaluate("metropolis.moveTo('time', metropolis.transport.end / 2)")
    page.click(f"#tab-{view}")
    until(page, f"metropolis.views.{view}[0].stage.width > 0")
    until(page, "metropolis.chunks.loading.size === 0")
    page.wait_for_timeout(300)  # until the canvas has its last size
    box = page.locator(f"#view-{view} canvas").first.bounding_box()
    return box["x"], box["y"]


@pytest.mark.parametrize("view", ["steps", "calls"])
def test_wheel_and_pointer_zoom_and_pan(
    smallville: Path, serve: Serve, show: Show, view: str
) -> None:
    page = show(serve(smallville))
    left, top = opened(page, view)
    whole = seen(page, view)
    assert (whole["left"], whole["right"]) == pytest.approx((0, whole["end"]))
    page.mouse.move(left + 400, top + 150)
    page.mouse.wheel(0, -400)
    until(page, f"metropolis.views.{view}[0].stage.scale[0] > {1.5 * whole['scale'][0]}")
    near = seen(page, view)
    assert near["x"] == pytest.approx(whole["x"])  # what is below the pointer stays there
    assert near["scale"][1] == whole["scale"][1]
    page.mouse.down()
    page.mouse.move(left + 300, top + 150, steps=4)
    page.mouse.up()
    panned = seen(page, view)
    assert panned["offset"][0] == pytest.approx(near["offset"][0] - 100)
    page.mouse.move(left + 40, top + 150)
    page.mouse.wheel(0, -400)
    until(page, f"metropolis.views.{view}[0].stage.scale[1] > {1.5 * whole['scale'][1]}")
    tall = seen(page, view)
    assert tall["scale"][0] == near["scale"][0]
    page.evaluate("metropolis.select(0, null)")
    page.mouse.click(left + 40, top + 150)
    names = "metropolis.views.steps[0].order()[Math.floor({row})]" if view == "steps" else "{row}"
    agent = int(page.evaluate(names.format(row=tall["y"])))
    assert page.evaluate("metropolis.state.selected") == agent
    for _ in range(40):  # as near as it gets: what is below the pointer still stays
        page.keyboard.press("+")
    middle = page.evaluate(f"metropolis.views.{view}[0].stage.width / 2")
    nearest = seen(page, view, middle)
    page.keyboard.press("+")
    assert seen(page, view, middle) == nearest
    page.click("#fit")
    page.wait_for_timeout(300)
    page.keyboard.press("Escape")
    page.wait_for_timeout(300)
    again = seen(page, view)
    assert again["scale"] == pytest.approx(whole["scale"])
    assert again["offset"] == pytest.approx(whole["offset"])


@pytest.mark.parametrize("view", ["steps", "calls"])
def test_two_sides_zoom_together(race: Path, serve: Serve, show: Show, view: str) -> None:
    page = show(serve(race))
    opened(page, view)
    page.evaluate(f"metropolis.views.{view}[0].stage.zoom(5)")
    one, other = (seen(page, view, side=side) for side in range(2))
    assert one == other
    page.set_viewport_size({"width": 1000, "height": 800})
    page.wait_for_timeout(300)
    one, other = (seen(page, view, side=side)["scale"] for side in range(2))
    assert one == other  # neither has been fitted to its new size


def test_steps_stay_zoomed_while_leads_grow(smallville: Path, serve: Serve, show: Show) -> None:
    page = show(serve(smallville))
    opened(page, "steps")
    page.evaluate("metropolis.leads.most = 20; metropolis.changed({}); metropolis.draw()")
    fitted = seen(page, "steps")
    assert fitted["right"] == pytest.approx(fitted["end"])
    page.evaluate("metropolis.views.steps[0].stage.zoom(2)")
    near = seen(page, "steps")
    page.evaluate("metropolis.leads.most = 1000; metropolis.changed({}); metropolis.draw()")
    assert seen(page, "steps")["scale"] == near["scale"]
