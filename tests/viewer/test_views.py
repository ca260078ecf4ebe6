"""Every view of the page shows what the run's files say."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metropolis.timeline.reader import read_timeline
from metropolis.trace.parquet import read_trace
from tests.viewer.conftest import STEPS, Serve, Show, history, positions_of, until

PIXEL = """([view, x, y]) => {
  const {canvas, context} = metropolis.views[view][0].stage;
  const ratio = canvas.width / canvas.clientWidth;
  return [...context.getImageData(Math.round(x * ratio), Math.round(y * ratio), 1, 1).data];
}"""
CENTRE = """([step, agent, sent]) => {
  const view = metropolis.views.calls[0];
  const {stage} = view;
  for (const calls of view.side.callsBetween(-Infinity, Infinity)) {
    for (let row = 0; row < calls.count; row += 1) {
      const isIt = calls.step[row] === step && calls.agent[row] === agent;
      if (!isIt || Math.abs(calls.sent[row] - sent) > 1e-2) continue;
      const middle = (calls.sent[row] + calls.completed[row]) / 2;
      stage.scale[0] = 60;
      stage.offset[0] = 400 - 60 * middle;
      view.clamp();
      stage.draw();
      return [stage.toX(middle), stage.toY(agent + 0.5)];
    }
  }
}"""
"""Zooms to a call; returns where it is on the canvas."""
SETTLED = "metropolis.chunks.loading.size === 0"


def at_time(page: Any, time_s: float) -> None:
    page.evaluate("time => metropolis.moveTo('time', time)", time_s)
    until(page, SETTLED)
    page.evaluate("metropolis.changed({}); metropolis.draw()")


def at_step(page: Any, step: int) -> None:
    page.evaluate("step => metropolis.moveTo('step', step)", step)
    until(page, SETTLED)
    page.evaluate("metropolis.changed({}); metropolis.draw()")


def view(page: Any, name: str) -> None:
    page.click(f"#tab-{name}")
    until(page, SETTLED)
    page.evaluate("metropolis.invalidate(); metropolis.draw()")


@pytest.fixture
def page(smallville: Path, serve: Serve, show: Show) -> Any:
    return show(serve(smallville))


def test_agents_are_at_their_own_steps(smallville: Path, page: Any) -> None:
    """At every time: steps, floor, who runs and who waits for whom, as in the timeline."""
    executions = read_timeline(smallville / "timeline").executions
    trace = read_trace(smallville)
    end_s = float(np.nanmax(executions.committed_s))
    committed = np.full((STEPS, trace.agents), np.inf)
    dispatched, blocker = committed.copy(), np.full(committed.shape, -1)
    for name, into in (("committed_s", committed), ("dispatched_s", dispatched)):
        into[executions.step, executions.agent] = getattr(executions, name)
    blocker[executions.step, executions.agent] = executions.blocked_by
    waited = 0
    known = positions_of(smallville)
    for time_s in [*np.linspace(0.01, 0.99, 12) * end_s, 1.01 * end_s]:
        at_time(page, time_s)
        moment = page.evaluate(
            """() => { const m = metropolis.moments[0]; return {
              steps: [...m.steps], status: [...m.status], blockedBy: [...m.blockedBy],
              positions: [...m.positions], floor: m.floor, lead: m.lead}; }"""
        )
        steps = (committed <= time_s).sum(axis=0)
        assert moment["steps"] == steps.tolist()
        assert (moment["floor"], moment["lead"]) == (steps.min(), steps.max() - steps.min())
        rows = np.minimum(steps, STEPS - 1), np.arange(trace.agents)
        waits = (dispatched[rows] > time_s) & (steps < STEPS)
        assert [status == 1 for status in moment["status"]] == waits.tolist()
        assert moment["blockedBy"] == np.where(waits, blocker[rows], -1).tolist()
        positions = np.array(moment["positions"]).reshape(-1, 2)
        assert np.array_equal(positions, known[steps, rows[1]])
        waited += int(waits.sum())
    assert waited > 10  # else the run shows nothing


def test_the_map_has_agents_where_they_are_in_the_colour_of_their_lead(page: Any) -> None:
    colours = set()
    for share in np.linspace(0.02, 0.98, 25):
        at_time(page, float(share) * page.evaluate("metropolis.transport.end"))
        places = page.evaluate(
            """() => { const town = metropolis.views.town[0], m = metropolis.moments[0];
              const seen = []; for (let a = 0; a < town.side.agents; a += 1) {
                const [x, y] = town.place(a);
                const near = [...m.steps.keys()].some((b) => b !== a &&
                  Math.hypot(town.place(b)[0] - x, town.place(b)[1] - y) < 2 * town.radius + 3);
                const isFree = town.covered.isFree(x - 1, y - 1, 2, 2);
                if (!near && isFree && m.status[a] === 0) seen.push([x, y, town.colour(m, a)]);
              } return seen; }"""
        )
        for x, y, colour in places:
            red, green, blue, _ = page.evaluate(PIXEL, ["town", x, y])
            expected = [int(part) for part in colour[4:-1].split()]
            assert max(abs(a - b) for a, b in zip((red, green, blue), expected, strict=True)) < 8
            colours.add(colour)
    assert len(colours) > 1


def test_scrubbing_by_step_shows_lockstep_history(smallville: Path, page: Any) -> None:
    positions = positions_of(smallville)
    doing: dict[str, str] = {}
    names = page.evaluate("metropolis.sides[0].meta.agents")
    for record in history(smallville):
        step = record["step"]
        for name, body in record.get("writes", {}).items():
            if name in names:
                doing[name] = body["state"]["doing"]
        if step % 60:
            continue
        at_step(page, step)
        shown = page.evaluate(
            """() => { const m = metropolis.moments[0], side = metropolis.sides[0]; return {
              positions: [...m.positions], steps: [...m.steps],
              doing: side.meta.agents.map((_, a) => side.doing(a, m.floor)?.label ?? null)}; }"""
        )
        assert set(shown["steps"]) == {step}
        assert shown["positions"] == positions[step].ravel().tolist()
        for name, label in zip(names, shown["doing"], strict=True):
            if name in doing:
                assert label == doing[name]
    page.evaluate("metropolis.moveTo('step', metropolis.transport.end)")
    until(page, SETTLED)
    page.evaluate("metropolis.changed({})")
    assert page.evaluate("[...metropolis.moments[0].positions]") == positions[-1].ravel().tolist()
    assert f"step {STEPS:,} of {STEPS:,}" in page.inner_text("#reading")


def test_a_person_says_what_it_does_and_remembers(smallville: Path, page: Any) -> None:
    talk = next(
        (record["step"], event)
        for record in history(smallville)
        for event in record.get("events", [])
        if event["kind"] == "conversation"
    )
    step, event = talk
    name, said = event["data"]["lines"][0]
    at_step(page, step)
    page.evaluate(
        "name => metropolis.select(0, metropolis.sides[0].meta.agents.indexOf(name))", name
    )
    until(page, SETTLED)
    assert page.inner_text("#panel h2") == name
    assert said in page.inner_text("#panel .moments")
    page.click("#panel summary")
    page.wait_for_selector("#panel .memories li")
    shown = [row.inner_text() for row in page.query_selector_all("#panel .memories li .text")]
    assert len(shown) > 5
    memories = page.evaluate(
        """([name, step]) => { const side = metropolis.sides[0];
          return side.mind(side.numbers.get(name), step).then((mind) => mind.memories); }""",
        [name, step],
    )
    assert shown == [memory["text"] for memory in memories[: len(shown)]]  # the newest ones


def test_a_call_shows_its_times_and_texts(smallville: Path, page: Any) -> None:
    lines = (smallville / "calls.jsonl").read_text().splitlines()[1:]
    calls = [json.loads(line)["is"] for line in lines]
    view(page, "calls")
    for number in (0, len(calls) // 2, len(calls) - 1):
        step, agent, call = calls[number]
        for _ in range(10):  # the canvas may just be given another size
            x, y = page.evaluate(CENTRE, [step, agent, call["sent"]])
            box = page.locator("#view-calls canvas").bounding_box()
            page.mouse.click(box["x"] + x, box["y"] + y)
            page.wait_for_timeout(200)
            if page.evaluate("metropolis.state.call !== null"):
                break
        page.wait_for_selector("#panel pre")
        panel = page.inner_text("#panel")
        shown = page.inner_text("#panel h2")
        same = [c for s, a, c in calls if (s, a) == (step, agent)]
        texts = [element.text_content() for element in page.query_selector_all("#panel pre")]
        called = [c for c in same if [c["prompt"], c["completion"]] == texts]
        assert shown in {c["function"] for c in called}  # perhaps one that was sent at once
        assert f"step\n{step:,}" in panel
        assert f"{called[0]['prompt_tokens']:,} in" in panel
        page.keyboard.press("Escape")


def test_calls_in_flight_add_up(smallville: Path, page: Any) -> None:
    """The strips below the calls show the greatest values within each pixel."""
    view(page, "calls")
    calls = read_timeline(smallville / "timeline").calls
    order = np.concatenate([calls.sent_s, calls.completed_s])
    change = np.repeat([1, -1], len(calls.sent_s))
    by_time = np.lexsort((change, order))
    end_s, lines = page.evaluate(
        """() => { const {side} = metropolis.views.calls[0], end = side.meta.end_s;
          const lines = metropolis.views.calls[0].measured(0, end, 200);
          return [end, lines.map((group) => group.map((line) => [...line]))]; }"""
    )
    pixel = np.minimum(199, order[by_time] / end_s * 200).astype(int)
    most = np.zeros(200)
    np.maximum.at(most, pixel, np.cumsum(change[by_time]))
    assert (np.abs(lines[0][0] - most) <= 2)[np.unique(pixel)].all()  # calls may share a bin
    assert len(lines[1]) == 2
    assert max(lines[4][0]) == calls.prompt_tokens.sum() + calls.output_tokens.sum()


def test_who_had_met_by_a_time(smallville: Path, page: Any) -> None:
    """By time, only conversations in steps that the speaker has come to."""
    executions = read_timeline(smallville / "timeline").executions
    committed = np.full((STEPS, executions.agent.max() + 1), np.inf)
    committed[executions.step, executions.agent] = executions.committed_s
    names = page.evaluate("metropolis.sides[0].meta.agents")
    said = [
        (record["step"], names.index(speaker))
        for record in history(smallville)
        for event in record.get("events", [])
        if event["kind"] == "conversation"
        for speaker, _ in event["data"]["lines"]
    ]
    view(page, "social")
    until(page, "metropolis.views.social[0].meetings !== null")
    ahead = 0
    for time_s in np.linspace(0.1, 0.9, 40) * float(np.nanmax(executions.committed_s)):
        at_time(page, time_s)
        steps = (committed <= time_s).sum(axis=0)
        counts = page.evaluate("metropolis.views.social[0].pairs().map((pair) => pair.count)")
        assert sum(counts) == sum(step <= steps[speaker] for step, speaker in said)
        ahead += sum(steps[speaker] < step <= steps.max() for step, speaker in said)
    assert ahead


def test_search_finds_what_was_said_and_leads_there(smallville: Path, page: Any) -> None:
    said = [
        (record["step"], name, text)
        for record in history(smallville)
        for event in record.get("events", [])
        if event["kind"] == "conversation"
        for name, text in event["data"]["lines"]
    ]
    word = max((word for _, _, text in said for word in text.split()), key=len)
    page.fill("#search", word)
    page.keyboard.press("Enter")
    page.wait_for_selector("#panel .moments li")
    found = page.inner_text("#panel")
    assert all(text in found for _, _, text in said if word in text)
    row = page.locator("#panel .moments button", has_text=word).first
    row.click()
    selected = page.evaluate("metropolis.sides[0].meta.agents[metropolis.state.selected]")
    assert selected in {name for _, name, text in said if word in text}


def test_news_is_followed_from_agent_to_agent(smallville: Path, page: Any) -> None:
    heard: dict[str, int] = {}
    words = "library"
    talks = defaultdict(int)
    for record in history(smallville):
        for event in record.get("events", []):
            if event["kind"] == "conversation":
                speakers = {name for name, _ in event["data"]["lines"]}
                talks[tuple(sorted(speakers))] += len(event["data"]["lines"])
                for _, text in event["data"]["lines"]:
                    if words in text.lower():
                        for each in speakers:
                            heard.setdefault(each, record["step"])
    view(page, "social")
    until(page, "metropolis.views.social[0].meetings !== null")
    page.evaluate("metropolis.moveTo('step', metropolis.transport.end)")
    at_step(page, STEPS - 1)
    pairs = page.evaluate(
        "metropolis.views.social[0].pairs().map(({a, b, count}) => [a, b, count])"
    )
    names = page.evaluate("metropolis.sides[0].meta.agents")
    assert {tuple(sorted((names[a], names[b]))): count for a, b, count in pairs} == dict(talks)
    page.fill(".news input", words)
    page.click(".news button")
    until(page, "metropolis.views.social[0].news !== null")
    until(page, f"document.querySelectorAll('#panel ol.moments li').length >= {len(heard)}")
    known = page.evaluate(
        "[...metropolis.views.social[0].news.heard].map(([a, {step}]) => [a, step])"
    )
    for name, step in heard.items():
        assert {names[a]: s for a, s in known}[name] <= step


def test_agents_of_a_replay_are_found_by_name(race: Path, serve: Serve, show: Show) -> None:
    page = show(serve(race))
    name = page.evaluate("metropolis.sides[0].meta.agents[7]")
    page.fill("#search", name.upper())
    page.keyboard.press("Enter")
    page.click(f"#panel a:text-is('{name}')")
    assert page.evaluate("metropolis.state.selected") == 7


def test_rows_of_all_agents_fit_into_a_low_window(page: Any) -> None:
    view(page, "steps")
    last = page.evaluate(
        """() => { const steps = metropolis.views.steps[0];
          steps.stage.height = 70; steps.fit(); steps.draw(steps.stage.context);
          return [steps.agentAt(53.9), steps.order().at(-1)]; }"""
    )
    assert last[0] == last[1]


def test_a_race_shows_both_modes_at_one_time(race: Path, serve: Serve, show: Show) -> None:
    page = show(serve(race))
    lanes = {mode: read_timeline(race / mode / "timeline") for mode in ("lockstep", "versioned")}
    ends = {mode: float(np.nanmax(lane.executions.committed_s)) for mode, lane in lanes.items()}
    assert f"{ends['lockstep'] / ends['versioned']:.2f} times as fast" in page.inner_text("#facts")
    time_s = 0.5 * ends["versioned"]
    at_time(page, time_s)
    titles = page.evaluate("metropolis.sides.map((side) => side.meta.mode)")
    floors = page.evaluate("metropolis.moments.map((moment) => moment.floor)")
    for mode, floor in zip(titles, floors, strict=True):
        executions = lanes[mode].executions
        finished = executions.committed_s <= time_s
        assert floor == np.bincount(executions.agent[finished], minlength=25).min()
    assert "all agents have done" in page.inner_text("#view-town figcaption >> nth=0")


def test_keys_and_narrow_screens(smallville: Path, serve: Serve, show: Show) -> None:
    page = show(serve(smallville), width=380, height=700)
    page.keyboard.press("3")
    assert page.evaluate("metropolis.state.view") == "calls"
    page.keyboard.press("t")
    assert page.evaluate("metropolis.state.basis") == "step"
    page.keyboard.press("n")
    assert page.evaluate("metropolis.state.selected") == 0
    before = page.evaluate("metropolis.state.at")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("metropolis.state.at") == before + 1
    page.keyboard.press("Escape")
    assert page.evaluate("metropolis.state.selected") is None
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 380


def test_the_memory_of_chunks_is_bounded(page: Any) -> None:
    """The least recently used are dropped."""
    found = page.evaluate(
        """async () => {
          const source = {bytes: async (path) => new ArrayBuffer(40 << 20)};
          const chunks = new metropolis.chunks.constructor(source, () => {});
          let most = 0;
          for (let number = 0; number < 12; number += 1) {
            await chunks.load(`0/calls/${number}`, (buffer) => buffer.byteLength);
            chunks.get("0/calls/0", () => null);
            most = Math.max(most, chunks.bytes);
          }
          return [most, [...chunks.kept.keys()]];
        }"""
    )
    assert found[0] <= 192 << 20
    assert found[1] == ["0/calls/9", "0/calls/10", "0/calls/11", "0/calls/0"]


def test_keys_on_controls_are_theirs(page: Any) -> None:
    """Space toggles a checkbox, and does not play; focus and typed text survive a new panel."""
    page.focus("#waits")
    page.keyboard.press("Space")
    assert page.evaluate("[metropolis.showsWaits, metropolis.state.isPlaying]") == [False, False]
    view(page, "social")
    until(page, "metropolis.views.social[0].meetings?.length > 0")
    page.focus(".news input")
    page.keyboard.type("lib")
    page.evaluate("metropolis.panel.update()")
    page.keyboard.type("rary")
    assert page.input_value(".news input") == "library"


def test_a_chunk_that_changed_is_shown_until_the_new_one_has_come(page: Any) -> None:
    until(page, SETTLED)
    old, loading, new = page.evaluate(
        """async () => { const side = metropolis.sides[0], path = side.path("calls", 0);
          const before = side.callsChunk(0); metropolis.chunks.renew(path);
          const old = side.callsChunk(0) === before, loading = metropolis.chunks.loading.has(path);
          await metropolis.chunks.load(path); return [old, loading, side.callsChunk(0) !== before];
        }"""
    )
    assert (old, loading, new) == (True, True, True)
