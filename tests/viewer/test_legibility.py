"""What the canvases draw can be read and found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.viewer.conftest import Serve, Show, run_metropolis, until
from tests.viewer.test_contrast import contrast

DRAWN = """(view) => {
  const found = [], {prototype} = CanvasRenderingContext2D, {fillText} = prototype;
  prototype.fillText = function (text, x, y) {
    found.push([String(text), this.fillStyle, x, y]);
    return fillText.call(this, text, x, y);
  };
  metropolis.views[view][0].kept = null;
  metropolis.invalidate();
  metropolis.draw();
  prototype.fillText = fillText;
  return found;
}"""
"""Draws a view; returns its texts, with their colours and places."""
AGENTS = """() => { const town = metropolis.views.town[0], moment = metropolis.moments[0];
  const {context} = town.stage;
  return town.labels.map((label, agent) => {
    context.fillStyle = town.colour(moment, agent);
    const isFull = moment.status[agent] === 0;
    return [label, isFull ? context.fillStyle : metropolis.theme.panel, ...town.place(agent)];
  }); }"""
"""The label of each agent, the colour behind it, and its place."""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_labels_of_agents_are_readable(
    smallville: Path, serve: Serve, show: Show, theme: str
) -> None:
    """In the colour of every lead, asleep and awake."""
    page = show(serve(smallville))
    page.evaluate("theme => metropolis.repaintNow(theme)", theme)
    page.evaluate("metropolis.views.town[0].stage.zoom(3)")
    read = 0
    for basis, share in [("step", 0.1), ("step", 0.9), *(("time", at / 10) for at in range(11))]:
        page.evaluate(
            "([basis, share]) => { metropolis.moveTo(basis, 0);"
            " metropolis.moveTo(basis, share * metropolis.transport.end); }",
            [basis, share],
        )
        until(page, "metropolis.chunks.loading.size === 0")
        page.evaluate("metropolis.changed({})")
        drawn = page.evaluate(DRAWN, "town")
        for label, behind, x, y in page.evaluate(AGENTS):
            for text, colour, *at in drawn:
                if text == label and at == pytest.approx([x, y + 0.5]):
                    assert contrast(colour, behind) >= 4.5, (basis, share, colour, behind)
                    read += 1
    assert read > 20
    colours = page.evaluate(
        """async () => { const {leadColour, leadTextColour} = await import("./colours.js");
          const {context} = metropolis.views.town[0].stage;
          return Array.from({length: 256}, (_, at) => {
            context.fillStyle = leadColour(at / 255);
            const behind = context.fillStyle;
            context.fillStyle = leadTextColour(at / 255);
            return [context.fillStyle, behind]; }); }"""
    )
    assert min(contrast(*pair) for pair in colours) >= 4.5


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crowd") / "run"
    run_metropolis("run", "minimal", "--agents", "150", "--steps", "4", "--out", folder, "--quiet")
    return folder


@pytest.mark.parametrize("view", ["steps", "calls"])
def test_the_selected_one_of_many_agents_is_named(
    crowd: Path, serve: Serve, show: Show, view: str
) -> None:
    page = show(serve(crowd))
    page.click(f"#tab-{view}")
    page.evaluate("metropolis.select(0, 77)")
    until(page, f"metropolis.views.{view}[0].stage.width > 0")
    name = page.evaluate("metropolis.sides[0].meta.agents[77]")
    assert [text for text, *_ in page.evaluate(DRAWN, view) if text.startswith("Villager")] == [
        name
    ]


def test_a_map_is_never_too_far_or_too_near(smallville: Path, serve: Serve, show: Show) -> None:
    page = show(serve(smallville))
    stage = "metropolis.views.town[0].stage"
    fitted = page.evaluate(f"{stage}.scale[0]")
    for factor, share in ((0.5, 1 / 8), (2, 64)):
        page.evaluate(f"for (let at = 0; at < 2000; at += 1) {stage}.zoom({factor})")
        assert page.evaluate(f"{stage}.scale") == pytest.approx([share * fitted] * 2)


def test_a_run_without_speech_and_calls_says_so(
    smallville: Path, serve: Serve, show: Show, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run_metropolis("run", "minimal", "--steps", "9", "--out", folder, "--quiet", "--no-timeline")
    page = show(serve(folder))
    page.click("#tab-calls")
    until(page, "metropolis.views.calls[0].stage.width > 0")
    assert "No calls are recorded." in [text for text, *_ in page.evaluate(DRAWN, "calls")]
    page.mouse.click(600, 300)
    assert page.evaluate("metropolis.state.basis") == "step"
    page = show(serve(smallville))
    page.evaluate("metropolis.moveTo('step', 0)")
    page.click("#tab-social")
    until(page, "metropolis.views.social[0].meetings !== null")
    until(page, "document.getElementById('panel').textContent.includes('Nobody has spoken')")


def test_two_maps_on_a_phone(smallville: Path, serve: Serve, show: Show) -> None:
    """Beside a panel, both maps are as wide as their half of the screen."""
    page = show(serve(smallville, "--beside", smallville), width=390, height=800)
    page.evaluate("metropolis.select(0, 3)")
    page.wait_for_timeout(500)  # until the canvases have their new sizes
    scale = "metropolis.views.town[0].stage.scale[0] * metropolis.sides[0].meta.map.width"
    assert page.evaluate(scale) > 150


@pytest.mark.parametrize(("width", "height"), [(720, 450), (320, 568)])
def test_a_low_screen_scrolls(
    smallville: Path, serve: Serve, show: Show, width: int, height: int
) -> None:
    """The view keeps some height beside a panel, and the slider stays visible."""
    page = show(serve(smallville), width=width, height=height)
    page.evaluate("metropolis.select(0, 3)")
    page.wait_for_timeout(500)  # until the canvas has its new size
    assert page.evaluate("metropolis.views.town[0].stage.height") > 120
    for to in ("0", "document.documentElement.scrollHeight"):
        page.evaluate(f"scrollTo(0, {to})")
        box = page.locator("#scrub").bounding_box()
        assert 0 <= box["y"] < box["y"] + box["height"] <= height
