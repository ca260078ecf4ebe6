"""A timeline as trace events: well-formed, and with the same content."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.export.layout import rows_without_overlap
from metropolis.export.perfetto import Lane, write_perfetto
from metropolis.runtime.live.configuration import LIVE_MODES
from metropolis.timeline.columns import NONE, Calls, Executions, Timeline
from metropolis.timeline.derived import progress_of, sum_over_time
from metropolis.timeline.format import EXECUTIONS, Meta, file_of
from metropolis.timeline.reader import read_timeline
from metropolis.trace.parquet import write_trace
from tests.commands import Command
from tests.export.trace_checks import Event, check_trace
from tests.small_traces import small_trace
from tests.timeline.recorded_runs import STEPS, simulation

ODD = st.text(st.characters(exclude_categories=()), max_size=8)
"""Also control characters and lone surrogates."""
TIME = st.integers(0, 12).map(lambda tick: tick / 8)


@st.composite
def timelines(draw: st.DrawFn, min_agents: int = 1) -> Timeline:
    """Any that a run may leave: agents that run ahead, calls in parallel, unfinished, failed."""
    agents, steps = draw(st.integers(min_agents, 4)), draw(st.integers(0, 4))
    first = draw(st.integers(0, 3))
    rows, calls = [], []
    for agent in range(agents):
        now = 0.0
        for step in range(first, first + draw(st.integers(0, steps))):
            dispatched = draw(TIME)
            now = max(now, dispatched) + draw(TIME)
            if draw(st.integers(0, 9)) == 9:
                continue  # a killed process lost it
            blocker = draw(st.integers(NONE, agents - 1))
            committed = now - draw(st.sampled_from([0, 0, 0, 1]))  # the clock was set back
            rows.append((step, agent, dispatched, committed, blocker, draw(st.integers(0, agent))))
            for number in range(draw(st.integers(0, 2))):
                sent = draw(TIME)
                started = draw(
                    st.one_of(st.just(np.nan), TIME.map(lambda wait, at=sent: at + wait))
                )
                ended = np.fmax(sent, started) + draw(TIME)
                completed, failed = draw(
                    st.sampled_from([(ended, False), (np.nan, False), (np.nan, True)])
                )
                place = draw(st.integers(NONE, 1))
                calls.append((step, agent, number, place, sent, started, completed, failed))
        if rows and rows[-1][1] == agent and draw(st.booleans()):
            rows[-1] = (*rows[-1][:3], np.nan, *rows[-1][4:])  # killed
    columns = [*zip(*sorted(rows), strict=True)] or [()] * 6
    step, agent, dispatched, committed, blocked_by, cluster = columns
    call_columns = [*zip(*sorted(calls, key=lambda one: one[:3]), strict=True)] or [()] * 8

    def ints(values: Any) -> Any:
        return np.array(values, np.int32)

    def floats(values: Any) -> Any:
        return np.array(values, np.float64)

    none = floats([np.nan] * len(step))
    count = len(call_columns[0])
    functions = tuple(sorted(draw(st.sets(ODD.filter(str.isprintable), min_size=1, max_size=2))))
    return Timeline(
        Meta(clock="real", run="abc", agents=agents, number=0),
        Executions(
            ints(step), ints(agent), floats(dispatched), floats(committed), none, none,
            ints(blocked_by), ints(cluster), ints([0] * len(step)),
        ),
        Calls(
            *map(ints, call_columns[:3]), ints(np.arange(count) % len(functions)),
            ints([0] * count),
            ints(call_columns[3]), *map(floats, call_columns[4:7]), ints([7] * count),
            ints([2] * count), np.array(call_columns[7], np.bool_), np.zeros(count, np.bool_),
            functions, ("m",),
        ),
    )  # fmt: skip


def events_of(*lanes: Lane) -> list[Event]:
    file = io.BytesIO()
    write_perfetto(file, lanes)
    return check_trace(file.getvalue())


@settings(max_examples=60)
@given(timelines(), st.data())
def test_every_timeline_is_written_well_formed_and_whole(
    found: Timeline, data: st.DataObject
) -> None:
    names = data.draw(st.lists(ODD, min_size=found.meta.agents, max_size=found.meta.agents))
    events = events_of(Lane("", found, names), Lane("other", found, names))
    by_kind = Counter((event["ph"], event.get("cat")) for event in events)
    rows, calls = found.executions, found.calls
    placed = int(((calls.instance != NONE) & ~calls.failed).sum())
    assert by_kind["X", "step"] == 2 * len(rows)
    assert by_kind["X", "call"] == 2 * (int((~calls.failed).sum()) + placed)
    assert by_kind["i", "failed call"] == 2 * int(calls.failed.sum())
    times = rows.dispatched_s, rows.committed_s, calls.sent_s, calls.completed_s
    end_s = max(np.nanmax(one, initial=0.0) for one in times)
    order = np.lexsort((rows.step, rows.dispatched_s, rows.agent))
    steps = [one for one in events if one.get("cat") == "step"]
    for row, one in zip([*order, *order], steps, strict=True):
        begin_us = rows.dispatched_s[row] * 1e6
        end_us = (end_s if np.isnan(rows.committed_s[row]) else rows.committed_s[row]) * 1e6
        assert one["args"]["step"] == rows.step[row]
        assert 0 <= one["ts"] - begin_us <= len(rows)
        assert one["ts"] + one["dur"] == max(end_us, one["ts"] + 1)
    marks = Counter(one["ts"] for one in events if one["ph"] == "i")
    assert marks == Counter([*(calls.sent_s[calls.failed] * 1e6)] * 2)
    for name in {one["name"] for one in events if one["ph"] == "C"}:
        if name not in ("floor", "lead"):
            counted = [one for one in events if (one["ph"], one["name"]) == ("C", name)]
            values = [value for one in counted for value in one["args"].values()]
            assert min(values) == values[-1] == 0


@pytest.mark.parametrize(
    ("steps", "agents", "dispatched_s", "committed_s", "spans"),
    [
        ((0, 1), (0, 1), (2.0, 1.5), (1.0, 3.0), [(2_000_000, 1), (1_500_000, 1_500_000)]),
        (
            (0, 1, 1),
            (0, 0, 1),
            (0.0, 0.0, 0.0),
            (0.125, -1.0, 0.5),
            [(0, 125_000), (0, 1), (0, 500_000)],
        ),
    ],
)
def test_a_clock_that_was_set_back_moves_no_one_else(
    steps: Any, agents: Any, dispatched_s: Any, committed_s: Any, spans: list[tuple[int, int]]
) -> None:
    """The last agent waits for agent 0, whose commits are not in the order of time."""

    def column(*values: int) -> Any:
        return np.array(values, np.int32)

    number = len(steps)
    none = np.full(number, np.nan)
    executions = Executions(
        column(*steps), column(*agents), np.array(dispatched_s), np.array(committed_s), none, none,
        column(*[NONE] * (number - 1), 0), column(*agents), column(*[0] * number),
    )  # fmt: skip
    empty = [column()] * 6 + [np.zeros(0)] * 3 + [column()] * 2 + [np.zeros(0, np.bool_)] * 2
    meta = Meta(clock="real", run="abc", agents=2, number=0)
    timeline = Timeline(meta, executions, Calls(*empty, (), ()))
    events = events_of(Lane("", timeline, ["a", "b"]))
    assert [(one["ts"], one["dur"]) for one in events if one["ph"] == "X"] == spans
    assert not any(one["ph"] in "sf" for one in events), "no arrow leads back in time"


def test_any_name_is_written_as_json(tmp_path: Path) -> None:
    simulation(tmp_path / "run", mode="lockstep", agents=4).run(STEPS)
    names = ["\ud800", "\ud83d\ude00", '</script>"\\\x00\u2028', "ﷺ" * 1000]
    events = events_of(Lane("", read_timeline(tmp_path / "run"), names))
    written = {one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert {"\ufffd", "\U0001f600", *names[2:]} <= written


@settings(max_examples=60)
@given(timelines(), TIME)
def test_floor_and_front_are_those_of_the_agents_steps(found: Timeline, now_s: float) -> None:
    progress = progress_of(found)
    row = int(np.searchsorted(progress.time_s, now_s, "right")) - 1
    if row < 0:
        return
    first = int(found.executions.step.min())
    steps = np.full(found.meta.agents, first)
    for step, agent, at in zip(
        found.executions.step, found.executions.agent, found.executions.committed_s, strict=True
    ):
        if at <= now_s:
            steps[agent] = max(steps[agent], step + 1)
    assert progress.front[row] == steps.max()
    assert progress.floor[row] == steps.min()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(1, 5))))
def test_sums_over_time(intervals: list[tuple[int, int, int]]) -> None:
    begins, widths, amounts = (
        (np.array(one, np.int64) for one in zip(*intervals, strict=True))
        if intervals
        else [np.zeros(0, np.int64)] * 3
    )
    times, values = sum_over_time(begins, begins + widths, amounts)
    assert (np.diff(times) > 0).all()
    for now in range(15):
        at = int(np.searchsorted(times, now, "right")) - 1
        open_ = sum(amount for begin, width, amount in intervals if begin <= now < begin + width)
        assert (values[at] if at >= 0 else 0) == open_


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4))).map(sorted))
def test_as_many_rows_as_intervals_overlap(intervals: list[tuple[int, int]]) -> None:
    begins = [begin for begin, _ in intervals]
    ends = [begin + width for begin, width in intervals]
    rows = rows_without_overlap(begins, ends)
    deepest = max(
        (sum(b <= t < max(e, b + 1) for b, e in zip(begins, ends, strict=True)) for t in begins),
        default=0,
    )
    assert set(rows) == set(range(max(rows, default=-1) + 1))
    assert len(set(rows)) <= max(deepest, 1)
    for row in set(rows):
        own = [i for i, one in enumerate(rows) if one == row]
        assert all(ends[i] <= begins[j] for i, j in pairwise(own))


@pytest.mark.parametrize("mode", LIVE_MODES)
def test_arrows_show_who_waited_for_whom(tmp_path: Path, mode: str) -> None:
    simulation(tmp_path / "run", mode=mode).run(STEPS)
    found = read_timeline(tmp_path / "run")
    names = [f"walker {number}" for number in range(found.meta.agents)]
    events = events_of(Lane("", found, names))
    threads = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    owner = {tid: name.partition(",")[0] for tid, name in threads.items()}
    at: dict[int, tuple[str, int]] = {}
    ends: dict[str, dict[int, tuple[str, int]]] = {"s": {}, "f": {}}
    for one in events:
        if one["ph"] == "X":
            at[one["tid"]] = owner[one["tid"]], one["args"]["step"]
        elif one["ph"] in ends:
            ends[one["ph"]][one["id"]] = at[one["tid"]]
    arrows = Counter((ends["s"][number], end) for number, end in ends["f"].items())
    rows = found.executions
    wanted = []
    for row in np.flatnonzero(rows.blocked_by != NONE):
        blocker, now_s = rows.blocked_by[row], rows.dispatched_s[row]
        before = (
            (rows.agent == blocker) & (rows.committed_s <= now_s) & (rows.step < rows.step[row])
        )
        last = (names[blocker], rows.step[before].max())
        wanted.append((last, (names[rows.agent[row]], rows.step[row])))
    assert arrows == Counter(wanted)
    assert (mode in ("sequential", "lockstep")) or arrows


def test_the_command_writes_runs_and_says_what_is_wrong(
    metropolis: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    simulation(folder).run(STEPS)
    file = folder / "perfetto.json.gz"
    assert f"{file}" in metropolis("export", "perfetto", folder).result
    events = check_trace(gzip.decompress(file.read_bytes()))
    plain = tmp_path / "trace.json"
    for _ in range(2):  # a second time it is replaced
        assert metropolis("export", "perfetto", folder, "--out", plain).result
    assert json.loads(plain.read_bytes())["traceEvents"] == events
    assert {path.name for path in tmp_path.iterdir()} == {"run", "trace.json"}
    for bad, out, words in (
        (tmp_path / "none", plain, "is not a folder"),
        (tmp_path, plain, "contains no timeline"),
        (folder, tmp_path / "no" / "where", "its folder does not exist"),
    ):
        assert words in metropolis("export", "perfetto", bad, "--out", out).refusal


def test_damage_is_told(metropolis: Command, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    simulation(folder).run(STEPS)
    assert "warning" not in metropolis("export", "perfetto", folder).err
    path = file_of(folder / "timeline", EXECUTIONS, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    ended = metropolis("export", "perfetto", folder)
    assert ended.result
    assert f"warning: {path}: is missing, incomplete or damaged" in ended.err


def test_files_of_another_run_are_refused(metropolis: Command, tmp_path: Path) -> None:
    folder, other, replayed = (tmp_path / name for name in ("run", "other", "replayed"))
    for seed, out in enumerate((folder, other)):
        simulation(out, seed=seed).run(STEPS)
    copyfile(other / "view.json", folder / "view.json")
    refusal = metropolis("export", "perfetto", folder).refusal
    assert f"{folder}/view.json: is of another run than the other files" in refusal
    assert metropolis("replay", other, "--modes", "lockstep", "--record", replayed).result
    write_trace(small_trace(5, agents=4, steps=6, edge=6, radius=2), replayed / "trace.parquet")
    refusal = metropolis("export", "perfetto", replayed).refusal
    assert "is of 5 agents, and the folder of 4; restore the timeline of this run" in refusal


def test_a_step_far_away_takes_no_memory() -> None:
    steps = np.array([3, 4, 2**31 - 2], np.int32)
    zeros = np.zeros(3, np.int32)
    times = np.array([1.0, 2.0, 3.0])
    executions = Executions(
        steps, zeros, times, times + 0.5, times, times, zeros + NONE, zeros, zeros
    )
    calls = Calls(*(np.zeros(0, np.int32) for _ in range(6)), *(np.zeros(0) for _ in range(3)),
                  *(np.zeros(0, np.int32) for _ in range(4)), (), ())  # fmt: skip
    meta = Meta(clock="real", run="it", agents=1, number=0)
    found = progress_of(Timeline(meta, executions, calls))
    assert found.floor.tolist() == found.front.tolist() == [3, 4, 5, 2**31 - 1]


def test_a_recorded_replay_has_its_modes_side_by_side(metropolis: Command, tmp_path: Path) -> None:
    source, folder = tmp_path / "in.parquet", tmp_path / "replayed"
    write_trace(small_trace(5, agents=4, steps=6, edge=6, radius=2), source)
    modes = ("--modes", "lockstep,oracle")
    assert metropolis("replay", source, *modes, "--record", folder).result
    assert metropolis("export", "perfetto", folder).result
    events = check_trace(gzip.decompress((folder / "perfetto.json.gz").read_bytes()))
    named = {each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert {name.partition(":")[0] for name in named} == {"lockstep", "oracle"}
    for own in ("trace.parquet", "replay.json", "oracle/timeline/calls-0.arrows"):
        content = (folder / own).read_bytes()
        refusal = metropolis("export", "perfetto", folder, "--out", folder / own).refusal
        assert f"{own}: belongs to the recording in {folder}" in refusal
        assert (folder / own).read_bytes() == content
