"""Worlds without a map and over graphs, runs with other agents, failed calls, runs that grow."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from metropolis.timeline.reader import read_timeline
from tests.viewer.conftest import Serve, Show, run_metropolis, until

WORLD = """
from dataclasses import dataclass
from metropolis import Agent, Entity, Scenario, World
from metropolis.rules.metrics import EUCLIDEAN, Hops

NODES = 30
AGENTS = [f"agent {number}" for number in range(5)]


class Place(World):
    name = "place"
    perception_radius = 1
    max_velocity = 20
    metric = METRIC

    def reset(self, *, seed, options):
        at = [START for number, name in enumerate(AGENTS)]
        return [Entity(name, place, "agent") for name, place in zip(AGENTS[::ORDER], at[::ORDER])]

    def observe(self, view):
        return None

    def resolve(self, cluster):
        for member in cluster:
            x, y = member.position
            number = int(member.name.split()[1])
            member.move(NEXT)


@dataclass
class Walker(Agent):
    name: str

    async def proceed(self, observation, llm):
        await llm.chat("where to?", function="choose", max_tokens=8)


def author(request, random):
    return "on"


def make(*, agents=None, seed=0):
    return Scenario(Place(), [Walker(name) for name in AGENTS[::ORDER]], author, steps=STEPS)
"""
GRAPH = {
    "METRIC": "Hops([[(node - 1) % NODES, (node + 1) % NODES] for node in range(NODES)])",
    "START": "(0 if number < 2 else 6 * number, 0)",
    "NEXT": "((x + 1) % NODES, 0)",
}
PLANE = {
    "METRIC": "EUCLIDEAN",
    "START": "(1000.5 + 100 * number, 5000.25)",
    "NEXT": "(x + 9, y - 2)",
}


def world(folder: Path, name: str, fields: dict[str, str], order: int = 1, steps: int = 12) -> Path:
    """A run of a world of five agents."""
    source = WORLD
    for key, value in (fields | {"ORDER": f"{order}", "STEPS": f"{steps}"}).items():
        source = source.replace(key, value)
    (folder / f"{name}.py").write_text(source)
    run_metropolis("run", folder / f"{name}.py", "--out", folder / name, "--quiet")
    return folder / name


def places(page: Any) -> list[list[float]]:
    """Where the agents are on the canvas, and its size."""
    until(page, "metropolis.moments[0].isKnown.every((known) => known)")
    page.evaluate("metropolis.changed({}); metropolis.draw()")
    found: list[list[float]] = page.evaluate(
        """() => { const town = metropolis.views.town[0], {width, height} = town.stage;
          town.draw(town.stage.context);
          return [...[0, 1, 2, 3, 4].map((agent) => town.place(agent)), [width, height]]; }"""
    )
    return found


def test_a_plane_is_shown_where_the_agents_are(tmp_path: Path, serve: Serve, show: Show) -> None:
    names = {'f"agent {number}"': '["Trader 0", "Crier 0", "Trader 1", "Ada 20", "7"][number]'}
    names |= {".split()[1]": ".split()[-1]"}
    page = show(serve(world(tmp_path, "plane", PLANE | names)))
    assert page.evaluate("metropolis.views.town[0].labels") == ["T0", "C0", "1", "20", "7"]
    for share in (0, 0.5, 1):
        page.evaluate("share => metropolis.moveTo('time', share * metropolis.transport.end)", share)
        *agents, (width, height) = places(page)
        for x, y in agents:
            assert 0 < x < width
            assert 0 < y < height


def test_times_of_a_run_without_calls_are_not_negative(
    tmp_path: Path, serve: Serve, show: Show
) -> None:
    call = 'await llm.chat("where to?", function="choose", max_tokens=8)'
    page = show(serve(world(tmp_path, "silent", PLANE | {call: "return None"})))
    page.evaluate("metropolis.state.set({ view: 'calls' })")
    until(page, "metropolis.views.calls[0].kept")  # it is drawn
    view = "metropolis.views.calls[0]"
    assert page.evaluate(f"{view}.stage.fromX({view}.left)") == 0


def test_agents_of_a_graph_are_at_its_nodes(tmp_path: Path, serve: Serve, show: Show) -> None:
    page = show(serve(world(tmp_path, "graph", GRAPH)))
    page.evaluate("metropolis.moveTo('step', 0)")
    *agents, (width, height) = places(page)
    for x, y in agents:
        assert 0 < x < width
        assert 0 < y < height
    assert len({(round(x), round(y)) for x, y in agents}) == 5  # also of two at one node
    nodes = [
        page.evaluate("node => metropolis.views.town[0].nodePlace(node)", node)
        for node in (0, 0, 12, 18, 24)
    ]
    away = np.hypot(*(np.array(agents) - nodes).T)
    assert away[[0, 2, 3, 4]].max() < 1e-6
    page.evaluate("metropolis.moveTo('step', 3)")
    *agents, _ = places(page)
    assert agents[2] == page.evaluate("metropolis.views.town[0].nodePlace(15)")


def test_runs_with_agents_in_another_order(tmp_path: Path, serve: Serve, show: Show) -> None:
    """Agents of two sides are matched by name; runs that only move differently differ."""
    one = world(tmp_path, "one", PLANE)
    turned = world(tmp_path, "turned", PLANE, order=-1)
    page = show(serve(one, "--beside", turned))
    until(page, "metropolis.differences?.isComplete")
    assert page.evaluate("metropolis.differences.list") == []
    page.evaluate("metropolis.select(1, 0)")
    selected = "metropolis.sides.map((side) => side.meta.agents[metropolis.selectedOn(side)])"
    assert page.evaluate(selected) == ["agent 4", "agent 4"]
    other = PLANE | {"NEXT": "(x + 9, y - 2 - (number == 3 and x > 1340))"}
    moved = world(tmp_path, "moved", other, order=-1)
    page = show(serve(one, "--beside", moved))
    until(page, "metropolis.differences?.isComplete")
    differences = page.evaluate("metropolis.differences.list")
    assert [(each["step"], each["agent"]) for each in differences] == [(6, 3)]
    assert differences[0]["there"] == "is at (1354.5, 4987.25)"
    assert page.evaluate("metropolis.differences.first") == 6
    page.evaluate("metropolis.moveTo('step', 8)")
    until(page, "metropolis.chunks.loading.size === 0")
    page.evaluate("metropolis.changed({})")
    marked = page.evaluate(
        """() => metropolis.sides.map((side, index) => side.meta.agents.filter(
          (_, agent) => metropolis.differs(side, agent, metropolis.moments[index])))"""
    )
    assert marked == [["agent 3"], ["agent 3"]]


@pytest.fixture
def failing(smallville: Path, tmp_path: Path) -> Path:
    """A copy of the run, of which every 40th call has failed; no instance is known."""
    folder = tmp_path / "failing"
    shutil.copytree(smallville, folder)
    path = folder / "timeline" / "calls-0.arrows"
    with pa.OSFile(f"{path}") as file:
        calls = pa.ipc.open_stream(file).read_all()
    completed = calls["completed_s"].to_pylist()
    fails = [row % 40 == 0 for row in range(len(completed))]
    lost = {
        "completed_s": [None if fails[row] else at for row, at in enumerate(completed)],
        "failed": fails,
        "instance": [None] * len(fails),
    }
    for name, values in lost.items():
        at = calls.schema.get_field_index(name)
        calls = calls.set_column(
            at, calls.schema.field(at), pa.array(values, calls.schema[at].type)
        )
    with pa.OSFile(f"{path}", "w") as file, pa.ipc.new_stream(file, calls.schema) as stream:
        stream.write_table(calls)
    return folder


def test_calls_that_failed_do_not_last(failing: Path, serve: Serve, show: Show) -> None:
    calls = read_timeline(failing / "timeline").calls
    ended = np.where(np.isnan(calls.completed_s), calls.started_s, calls.completed_s)
    times = np.concatenate([calls.sent_s, ended])
    change = np.repeat([1, -1], len(ended))
    most = np.cumsum(change[np.lexsort((change, times))]).max()
    page = show(serve(failing))
    page.click("#tab-calls")
    until(page, "metropolis.views.calls[0].strips.length > 0")  # it has a size
    until(page, "metropolis.chunks.loading.size === 0")
    names, lines = page.evaluate(
        """() => { const view = metropolis.views.calls[0];
          const lines = view.measured(0, view.side.meta.end_s, 40000);
          const names = view.strips.map(({name}) => name);
          const known = lines.filter((group) => group.length).map(([line]) => line);
          return [names, known.map((line) => Math.max(...line.slice(-3)) +
            1e6 * line.reduce((a, b) => Math.max(a, b)))]; }"""
    )
    assert names == ["calls in flight", "skew, steps", "tokens so far"]  # no instance is known
    last, highest = lines[0] % 1e6, lines[0] // 1e6
    assert last < calls.failed.sum() / 4, "none of them is in flight for ever"
    assert abs(highest - most) <= 2
    found = page.evaluate(
        """() => { const view = metropolis.views.calls[0], {stage, side} = view;
          for (const calls of side.callsBetween(-Infinity, Infinity))
            for (let row = 0; row < calls.count; row += 1)
              if (calls.flags[row]) {
                stage.scale[0] = 200; stage.offset[0] = 400 - 200 * calls.ended[row];
                const [x, y] = [calls.ended[row], calls.agent[row] + 0.5];
                const it = view.callAt(stage.toX(x), stage.toY(y));
                return it && [it.calls.flags[it.row], it.calls.index[it.row] === calls.index[row]];
              } }"""
    )
    assert found == [1, True]  # it can be opened


def test_a_run_that_begins_is_shown_by_time_once_it_has_times(
    smallville: Path, serve: Serve, show: Show
) -> None:
    page = show(serve(smallville))
    page.evaluate(
        """() => { const side = metropolis.sides[0]; window.whole = side.meta;
          side.update({counts: {...side.meta.counts, executions: 0}, end_s: 0});
          Object.assign(metropolis.state, {basis: "step", at: 0, isLive: true});
          metropolis.start(metropolis.sides); }"""
    )
    assert page.evaluate("metropolis.state.basis") == "step"
    assert page.evaluate("document.getElementById('by-time').disabled")
    page.evaluate("metropolis.sides[0].update(window.whole); metropolis.changed({})")
    assert page.evaluate("metropolis.state.basis") == "time"
    assert not page.evaluate("document.getElementById('by-time').disabled")


def test_an_error_of_a_run_in_progress_is_shown(smallville: Path, serve: Serve, show: Show) -> None:
    page = show(serve(smallville))
    sentence = "run: cannot be read; has the folder been removed?"
    page.evaluate(
        """error => import("/live.js").then(
          ({receive}) => receive(metropolis, {side: 0, error}))""",
        sentence,
    )
    assert page.text_content("#live-state") == sentence


def test_a_lost_server_is_shown(smallville: Path, serve: Serve, show: Show) -> None:
    page = show(serve(smallville))
    page.evaluate("document.getElementById('run-stop').hidden = false")
    page.evaluate(
        """() => import("/live.js").then(({follow}) => {
          metropolis.source.follow = () => Promise.reject(new TypeError("network error"));
          return follow(metropolis); })"""
    )
    assert (
        page.text_content("#live-state")
        == "the viewer has ended: `metropolis view` shows the run again"
    )
    assert page.evaluate("document.getElementById('run-stop').hidden")


MANY = """async () => {
  let asked = 0;
  const source = {bytes: () => { asked += 1; return Promise.resolve({byteLength: 4 << 20}); }};
  const chunks = new metropolis.chunks.constructor(source, () => {});
  for (let time = 0; time < 5; time += 1) {
    for (let at = 0; at < 100; at += 1) chunks.get(`${at}`, (buffer) => buffer, true);
    await new Promise((resolve) => setTimeout(resolve));
  }
  const before = asked;
  chunks.get("needed", (buffer) => buffer);
  return [before, asked - before, chunks.bytes >> 20, chunks.areMany(100, 4 << 20)];
}"""


def test_more_chunks_than_the_page_keeps_are_fetched_once(
    smallville: Path, serve: Serve, show: Show
) -> None:
    page = show(serve(smallville))
    assert page.evaluate(MANY) == [100, 1, 192, True]


CHUNKS = """async () => {
  const answers = [];
  const source = {bytes: () => new Promise((resolve) => answers.push(resolve))};
  const chunks = new metropolis.chunks.constructor(source, () => {});
  const decode = (text) => text;
  const settle = () => new Promise((resolve) => setTimeout(resolve));
  const seen = [chunks.get("a", decode)];
  answers[0]("one"); await settle();
  seen.push(chunks.get("a", decode));
  chunks.renew("a");
  seen.push(chunks.get("a", decode));  // asked for again, and shown as it was
  chunks.renew("a");                   // has changed once more before the answer
  seen.push(chunks.get("a", decode));
  answers[2]("three"); await settle();
  answers[1]("two"); await settle();   // an answer that is out of date
  seen.push(chunks.get("a", decode), answers.length);
  return seen;
}"""


def test_a_chunk_that_changes_is_shown_as_it_was_until_it_has_come(
    smallville: Path, serve: Serve, show: Show
) -> None:
    page = show(serve(smallville))
    assert page.evaluate(CHUNKS) == [None, "one", "one", "one", "three", 3]
