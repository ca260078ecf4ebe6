"""Timelines as a trace for Perfetto and chrome://tracing; docs/export.md explains what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, BinaryIO

import numpy as np

from metropolis.timeline.derived import Int64, progress_of, sum_over_time, waits
from metropolis.export.trace_events import TraceEvents, rows_without_overlap, valid_text
from metropolis.timeline.columns import NONE, Float64, Timeline

WAITS = "waits for"
"""The kind of the arrows."""


@dataclass(frozen=True)
class Lane:
    """One timeline of a trace."""

    name: str
    """Distinguishes it from others; empty if it is the only one."""
    timeline: Timeline
    agents: Sequence[str]
    """Their names, by id."""


def write_perfetto(
    file: BinaryIO, lanes: Sequence[Lane], advance: Callable[[int], None] = lambda _: None
) -> None:
    """Write a trace of `lanes`, which share one axis of time.

    `advance` is called with numbers of agent-steps and calls.
    """
    facts = [
        {
            "lane": valid_text(lane.name),
            "run": valid_text(lane.timeline.meta.run),
            "clock": lane.timeline.meta.clock,
        }
        for lane in lanes
    ]
    events = TraceEvents(file, {"timelines": facts})
    arrows = count(1)
    for lane in lanes:
        writer = _LaneWriter(events, lane, arrows)
        writer.write_agents(advance)
        writer.write_counters()
        writer.write_instances()
    events.close()


class _LaneWriter:
    def __init__(self, events: TraceEvents, lane: Lane, arrows: Iterator[int]) -> None:
        self._events = events
        self._timeline = timeline = lane.timeline
        self._names = [valid_text(name) for name in lane.agents]
        self._prefix = f"{valid_text(lane.name)}: " if lane.name else ""
        self._time = f"{timeline.meta.clock} time"
        rows, calls = timeline.executions, timeline.calls
        times = (rows.dispatched_s, rows.committed_s, calls.sent_s, calls.completed_s)
        self._end_s = max(float(np.nanmax(one, initial=0.0)) for one in times)
        self._by_agent = np.lexsort((rows.step, rows.dispatched_s, rows.agent))
        self._begin_us = _us(rows.dispatched_s)
        self._committed_us = self._ends_us(self._begin_us, rows.committed_s)
        self._arrow_to: dict[int, int] = {}
        """Row of an agent-step that waited -> its arrow."""
        self._arrows_from: dict[int, list[int]] = {}
        """Row of a blocker's agent-step -> the arrows that begin there."""
        waiting, blockers = waits(timeline)
        for row, blocker in zip(waiting.tolist(), blockers.tolist(), strict=True):
            self._arrow_to[row] = arrow = next(arrows)
            self._arrows_from.setdefault(blocker, []).append(arrow)
        self._agents_pid = events.process(f"{self._prefix}agents, {self._time}")

    def write_agents(self, advance: Callable[[int], None]) -> None:
        """A thread per agent with its agent-steps, and threads below with its calls."""
        rows, calls = self._timeline.executions, self._timeline.calls
        agents = np.arange(len(self._names) + 1)
        bounds = np.searchsorted(rows.agent[self._by_agent], agents).tolist()
        order = np.lexsort((calls.sent_s, calls.agent))
        call_bounds = np.searchsorted(calls.agent[order], agents).tolist()
        for agent, name in enumerate(self._names):
            own = self._by_agent[bounds[agent] : bounds[agent + 1]]
            own_calls = order[call_bounds[agent] : call_bounds[agent + 1]]
            self._write_steps(name, own)
            self._write_calls(name, own_calls)
            advance(len(own) + len(own_calls))

    def _write_steps(self, name: str, own: Int64) -> None:
        rows, pid, events = self._timeline.executions, self._agents_pid, self._events
        begins, ends = self._begin_us[own].tolist(), self._committed_us[own].tolist()
        layers = rows_without_overlap(begins, ends)
        columns = zip(
            own.tolist(),
            begins,
            ends,
            layers,
            rows.step[own].tolist(),
            rows.blocked_by[own].tolist(),
            rows.cluster[own].tolist(),
            rows.wasted[own].tolist(),
            np.isnan(rows.committed_s[own]).tolist(),
            strict=True,
        )
        tids = [
            events.thread(pid, name if not layer else f"{name}, ahead {layer}")
            for layer in range(max(layers, default=0) + 1)
        ]
        for row, begin, end, layer, step, blocker, cluster, wasted, is_open in columns:
            args: dict[str, Any] = {"step": step, "cluster": self._names[cluster]}
            if blocker != NONE:
                args["blocked_by"] = self._names[blocker]
            if wasted:
                args["wasted"] = wasted
            if is_open:
                args["unfinished"] = True
            tid = tids[layer]
            events.slice(pid, tid, "step", f"step {step}", begin, end, args)
            if row in self._arrow_to:
                events.flow(pid, tid, WAITS, self._arrow_to[row], begin, is_end=True)
            for arrow in self._arrows_from.get(row, ()):
                events.flow(pid, tid, WAITS, arrow, max(begin, end - 1), is_end=False)

    def _write_calls(self, name: str, own: Int64) -> None:
        if not len(own):
            return
        calls, pid, events = self._timeline.calls, self._agents_pid, self._events
        failed = own[calls.failed[own]]
        others = own[~calls.failed[own]]
        begins_us = _us(calls.sent_s[others])
        begins = begins_us.tolist()
        ends = self._ends_us(begins_us, calls.completed_s[others]).tolist()
        layers = rows_without_overlap(begins, ends)
        tids = [
            events.thread(pid, f"{name}: calls{f' {layer + 1}' if layer else ''}")
            for layer in range(max(layers, default=0) + 1)
        ]
        for row, begin, end, layer in zip(others.tolist(), begins, ends, layers, strict=True):
            function = calls.functions[calls.function[row]]
            events.slice(pid, tids[layer], "call", function, begin, end, self._facts(row))
        for row, now_us in zip(failed.tolist(), _us(calls.sent_s[failed]).tolist(), strict=True):
            name = f"{calls.functions[calls.function[row]]} failed"
            events.instant(pid, tids[0], "failed call", name, now_us, self._facts(row))

    def write_instances(self) -> None:
        """A process per instance: threads with its calls, and counters."""
        calls, events = self._timeline.calls, self._events
        begin_s = np.where(np.isnan(calls.started_s), calls.sent_s, calls.started_s)
        ran = (calls.instance != NONE) & ~calls.failed
        for instance in np.unique(calls.instance[ran]).tolist():
            own = np.flatnonzero(ran & (calls.instance == instance))
            own = own[np.argsort(begin_s[own], kind="stable")]
            pid = events.process(f"{self._prefix}instance {instance}, {self._time}")
            begins = _us(begin_s[own])
            ends = self._ends_us(begins, calls.completed_s[own])
            layers = rows_without_overlap(begins.tolist(), ends.tolist())
            tids = [
                events.thread(pid, f"slot {layer + 1}")
                for layer in range(max(layers, default=0) + 1)
            ]
            for row, begin, end, layer in zip(
                own.tolist(), begins.tolist(), ends.tolist(), layers, strict=True
            ):
                function = calls.functions[calls.function[row]]
                args = self._facts(row) | {"agent": self._names[calls.agent[row]]}
                events.slice(pid, tids[layer], "call", function, begin, end, args)
            tokens = calls.prompt_tokens[own] + calls.output_tokens[own]
            self._write_sum(pid, "calls in the batch", begins, ends, np.ones_like(begins))
            self._write_sum(pid, "tokens of the batch", begins, ends, tokens.astype(np.int64))

    def write_counters(self) -> None:
        """Counters of all agents: calls in flight, floor and lead."""
        calls, pid, events = self._timeline.calls, self._agents_pid, self._events
        sent = np.flatnonzero(~calls.failed)
        begins = _us(calls.sent_s[sent])
        ends = self._ends_us(begins, calls.completed_s[sent])
        self._write_sum(pid, "calls in flight", begins, ends, np.ones_like(begins))
        progress = progress_of(self._timeline)
        times_us = _us(progress.time_s)
        for name, values in (("floor", progress.floor), ("lead", progress.front - progress.floor)):
            changed = np.flatnonzero(np.diff(values, prepend=NONE))
            for now_us, value in zip(
                times_us[changed].tolist(), values[changed].tolist(), strict=True
            ):
                events.counter(pid, name, now_us, value)

    def _write_sum(self, pid: int, name: str, begins: Int64, ends: Int64, amounts: Int64) -> None:
        """A counter: the sum of `amounts` over the intervals that are open."""
        times, values = sum_over_time(begins, ends, amounts)
        for now_us, value in zip(times.tolist(), values.tolist(), strict=True):
            self._events.counter(pid, name, now_us, value)

    def _facts(self, row: int) -> dict[str, Any]:
        """The arguments of a call."""
        calls = self._timeline.calls
        args: dict[str, Any] = {
            "step": int(calls.step[row]),
            "model": calls.models[calls.model[row]],
            "prompt_tokens": int(calls.prompt_tokens[row]),
            "output_tokens": int(calls.output_tokens[row]),
        }
        if calls.instance[row] != NONE:
            args["instance"] = int(calls.instance[row])
        if not np.isnan(calls.started_s[row]):
            args["queue_s"] = round(float(calls.started_s[row] - calls.sent_s[row]), 6)
        if calls.wasted[row]:
            args["wasted"] = True
        if np.isnan(calls.completed_s[row]) and not calls.failed[row]:
            args["unfinished"] = True
        return args

    def _ends_us(self, begins_us: Int64, ends_s: Float64) -> Int64:
        """`ends_s`; the end of the timeline where there is none.

        No end precedes its begin: a wall clock that is set back may have given such times.
        """
        ends_s = np.where(np.isnan(ends_s), self._end_s, ends_s)
        return np.maximum(begins_us, _us(ends_s))


def _us(times_s: Float64) -> Int64:
    return np.rint(times_s * 1e6).astype(np.int64)
