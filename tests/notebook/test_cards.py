"""Objects show themselves in notebooks: what they hold, escaped, in bounded space."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.call_log import CallRecord
from metropolis.maps.map import GridMap
from metropolis.notebook.card import CHARACTERS_MAX, card, escaped, figure
from metropolis.notebook.chart import BINS, draw_chart
from metropolis.notebook.map_drawing import _path, draw_map, draw_plane
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.trace.schema import Trace
from metropolis.world.scenario import Scenario
from tests.runtime.walkers import Meadow, Walker, author

EVIL = "</div></svg><script>alert(1)</script><img src=x onerror='alert(2)'>\"'&\ud800\x00\u202e"
TAGS = {"div", "span", "b", "svg", "path", "text"}
ATTRIBUTES = {
    *("style", "viewbox", "preserveaspectratio", "role", "d", "fill", "fill-opacity"),
    *("stroke", "stroke-width", "stroke-linecap", "x", "y", "font-size", "text-anchor"),
    "font-family",
}


class Checker(HTMLParser):
    """Collects the text; fails on tags and attributes that cards do not have."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert {name for name, _ in attrs} <= ATTRIBUTES
        assert not any("url(" in (value or "") for _, value in attrs)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def text_of(html: str, bytes_max: int = 100_000) -> str:
    """The text of well-formed HTML of the tags of cards."""
    assert len(html.encode()) <= bytes_max
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert not checker.open
    return checker.text


def grid(
    walls: npt.NDArray[np.bool_], names: tuple[str, ...] = ("",), areas: Any = None
) -> GridMap:
    none = np.zeros(walls.shape, np.int32)
    return GridMap("town", walls, none if areas is None else areas, names, none, ("",))


def result_of(name: str = "meadow", agents: int = 5) -> tuple[Meadow, RunResult]:
    world = Meadow(agents, side=10, joint=1)
    world.name = name
    fleet = SimulatedFleet.uniform("llama-3-8b/l4", 2)
    walkers = [Walker(one) for one in world.names]
    run = Simulation(world, walkers, VirtualInstances(Scripted(author), fleet))
    return world, run.run(6)


@given(st.text(st.characters(exclude_categories=()), max_size=50))
def test_texts_stay_texts(text: str) -> None:
    shown = text_of(card(text, text, {text: text}, [figure("", text)]))
    shown.encode()  # no half surrogate pairs
    assert all(one.isprintable() for one in shown)
    if text and text.isprintable():
        assert shown.count(text) >= 4


def test_attacks_are_escaped() -> None:
    assert "\\ud800\\x00\\u202e" in text_of(escaped(EVIL))
    assert escaped("'\"") == "&#x27;&quot;", "also for attributes"
    assert len(escaped("&" * 10_000)) == len("&amp;") * (CHARACTERS_MAX - 1) + 1
    areas = np.zeros((40, 40), np.int32)
    areas[5:20, 5:30] = 1
    town = replace(grid(areas > 2, ("", f"{EVIL}: {EVIL}"), areas), name=EVIL)
    world, result = result_of(EVIL)
    world.map = town
    trace = result.trace
    trace = replace(
        trace,
        meta=replace(trace.meta, name=EVIL, agents=(EVIL,) * 5, source=EVIL, map=town),
        calls=replace(trace.calls, functions=(EVIL,) * len(trace.calls.functions)),
    )
    walkers = [Walker(name) for name in world.names]
    for shown in (town, world, Scenario(world, walkers), trace, result):
        text = text_of(shown._repr_html_())
        assert "<script>" in text


def test_a_run_and_its_trace_show_their_figures() -> None:
    _, result = result_of()
    text = text_of(result._repr_html_())
    for fact in (
        "out_of_order, versioned",
        f"{result.calls:,} (",
        f"{result.prompt_tokens:,} prompt, {result.output_tokens:,} output",
        "of simulated time",
        result.history_sha256,
        f"Calls in flight over simulated time, at most {result._in_flight.max()}.",
    ):
        assert fact in text
    text = text_of(result.trace._repr_html_())
    assert f"{len(result.trace.calls):,}, " in text
    assert "calls generated" in text
    assert f"at most {np.bincount(result.trace.calls.step).max()}." in text
    empty = replace(result, calls=0)
    assert "in flight" not in text_of(empty._repr_html_())


def test_calls_in_flight() -> None:
    _, result = result_of()
    spans = [
        (call.sent, call.completed)
        for _, calls in result.recorded.steps_from(0)
        for _, _, call in calls
        if call.completed is not None
    ]
    edges = np.linspace(0, max(end for _, end in spans), BINS + 1)
    for (first, last), most in zip(pairwise(edges), result._in_flight.tolist(), strict=True):
        middle = (first + last) / 2
        assert most >= sum(begin <= middle < end for begin, end in spans)
    short = [CallRecord("f", "m", (), 0.0, 24.0), CallRecord("f", "m", (), 5.01, 5.02)]
    recorded = replace(
        result.recorded,
        steps_from=lambda _: iter([(np.zeros((1, 2)), [(0, 0, one) for one in short])]),
    )
    assert replace(result, recorded=recorded)._in_flight.tolist() == [1] * 50 + [2] + [1] * 189
    moments = [begin for begin, _ in spans]
    assert result._in_flight.max() == max(
        sum(begin <= now < end for begin, end in spans) for now in moments
    )


@given(st.data())
def test_a_drawing_covers_exactly_the_cells(data: st.DataObject) -> None:
    height, width = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    bits = data.draw(st.lists(st.booleans(), min_size=height * width, max_size=height * width))
    cells = np.array(bits).reshape(height, width)
    drawn = np.zeros_like(cells)
    for x, y, w in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\3z", _path(cells)):
        drawn[int(y), int(x) : int(x) + int(w)] ^= True
    assert (drawn == cells).all()


def test_maps_are_drawn_as_they_are() -> None:
    walls = np.zeros((30, 50), np.bool_)
    walls[10, 5:20] = True
    areas = np.zeros((30, 50), np.int32)
    areas[12:20, 5:30], areas[22:28, 5:15] = 1, 2
    names = ("", "Old Mill: hall", "Old Mill: yard")
    drawing = draw_map(walls, areas, names, np.array([[7.0, 13.0]]))
    assert "M5 10h15v1h-15z" in drawing
    assert "M5 12h25v1h-25z" in drawing
    assert drawing.count("Old Mill") == 1, "one label per place"
    assert "M7.5 13.5h0" in drawing
    text_of(drawing)


def test_labels_do_not_cover_each_other() -> None:
    areas = np.zeros((40, 160), np.int32)
    for number in range(30):
        areas[10 + 12 * (number % 2) :, 5 * number : 5 * number + 5] = number + 1
    names = ("", *(f"The place number {number}" for number in range(30)))
    drawing = draw_map(np.zeros_like(areas, np.bool_), areas, names)
    boxes = []
    for x, y, font, name in re.findall(
        r'<text x="([\d.]+)" y="([\d.]+)" font-size="([\d.]+)"[^>]*>(.*?)</text>', drawing
    ):
        half = 0.29 * float(font) * len(name)
        boxes.append((float(x) - half, float(x) + half, float(y) - float(font), float(y)))
    assert len(boxes) > 3
    for i, (left, right, top, bottom) in enumerate(boxes):
        assert left > -1
        assert right < 161
        for one in boxes[:i]:
            assert left >= one[1] or one[0] >= right or top >= one[3] or one[2] >= bottom


@pytest.mark.parametrize("kind", ["noise", "chessboard", "walls", "thin"])
def test_large_maps_stay_small(kind: str) -> None:
    size = 1_500
    y, x = np.ogrid[:size, :size]
    walls: npt.NDArray[np.bool_] = {
        "noise": np.random.default_rng(0).random((size, size)) < 0.3,
        "chessboard": (x // 20 + y // 20) % 2 == 0,
        "walls": np.ones((size, size), np.bool_),
        "thin": (x % 50 == 0) | (y % 50 == 0),
    }[kind]
    areas = ((x // 7) * 500 + y // 7).astype(np.int32) % 5_000
    names = ("", *(f"place {number}: room" for number in range(5_000)))
    shown = grid(walls, names, areas)._repr_html_()
    text = text_of(shown)
    assert "1,500 x 1,500 tiles" in text
    assert re.search(r'<path d="M[^"]+" fill="currentColor"', shown), "its walls are visible"


def test_many_agents_and_steps_stay_small() -> None:
    _, result = result_of()
    agents, steps = 30_000, 50
    trace = Trace(
        replace(result.trace.meta, agents=tuple(f"agent {number}" * 9 for number in range(agents))),
        np.random.default_rng(0).random((steps, agents, 2), np.float32) * 1e3,
        result.trace.calls,
    )
    text = text_of(trace._repr_html_())
    assert "30,000: agent 0" in text
    assert "and 29,994 more" in text
    assert draw_chart(np.arange(100_000)).count("L") == BINS
    text_of(draw_plane(np.zeros((1, 2))))
