"""Timelines as a trace for Perfetto and chrome://tracing; docs/export.md explains what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, BinaryIO

import numpy as np

from metropolis.export.layout import (
    LEAST_US,
    Layout,
    call_layout,
    ends_us,
    microseconds,
    step_layout,
)
from metropolis.export.trace_events import TraceEvents, valid_text
from metropolis.timeline.columns import NONE, Float64, Timeline
from metropolis.timeline.derived import Int64, progress_of, sum_over_time

WAITS = "waits for"
"""The name of the arrows from a blocker's agent-step to the one that waited for it."""


@dataclass(frozen=True)
class Lane:
    """One timeline of a trace."""

    name: str
    """The prefix of the lane's processes; empty if there is only one lane."""
    timeline: Timeline
    agents: Sequence[str]
    """The name of each agent, by id."""


def write_perfetto(
    file: BinaryIO, lanes: Sequence[Lane], advance: Callable[[int], None] = lambda _: None
) -> None:
    """Write a trace of `lanes`, which share one axis of time.

    `advance` is called with the number of agent-steps and calls written since its last call.
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
        self._steps = step_layout(timeline, self._end_s)
        self._arrow_to: dict[int, int] = {}
        """Index of the slice of an agent-step that waited -> number of its arrow."""
        self._arrows_from: dict[int, list[int]] = {}
        """Index of the slice of a blocker's agent-step -> numbers of the arrows from it."""
        for waiting, blocker in self._steps.blocker.items():
            self._arrow_to[waiting] = arrow = next(arrows)
            self._arrows_from.setdefault(blocker, []).append(arrow)
        self._agents_pid = events.process(f"{self._prefix}agents, {self._time}")

    def write_agents(self, advance: Callable[[int], None]) -> None:
        """Write a thread per agent with its agent-steps, and threads below with its calls."""
        calls, bounds = self._timeline.calls, self._steps.bounds
        order = np.argsort(calls.agent, kind="stable")
        call_bounds = np.searchsorted(calls.agent[order], np.arange(len(self._names) + 1)).tolist()
        for agent, name in enumerate(self._names):
            own = range(*bounds[agent : agent + 2])
            own_calls = range(*call_bounds[agent : agent + 2])
            self._write_steps(name, own)
            self._write_calls(name, order[own_calls])
            advance(len(own) + len(own_calls))

    def _write_steps(self, name: str, own: range) -> None:
        pid, events, steps = self._agents_pid, self._events, self._steps
        tids = self._threads(
            pid,
            [steps.row[one] for one in own],
            lambda row: f"{name}, ahead {row}" if row else name,
        )
        for one in own:
            tid, begin, end = tids[steps.row[one]], steps.begin_us[one], steps.end_us[one]
            args = self._facts_of_step(steps.source[one])
            events.slice(pid, tid, "step", f"step {args['step']}", begin, end, args)
            if one in self._arrow_to:
                events.flow(pid, tid, WAITS, self._arrow_to[one], begin, is_end=True)
            for arrow in self._arrows_from.get(one, ()):
                events.flow(pid, tid, WAITS, arrow, end - LEAST_US, is_end=False)

    def _write_calls(self, name: str, own: Int64) -> None:
        if not len(own):
            return
        calls, pid, events = self._timeline.calls, self._agents_pid, self._events
        failed, others = own[calls.failed[own]], own[~calls.failed[own]]
        layout = call_layout(others, *self._span_us(calls.sent_s[others], others))
        tids = self._threads(
            pid, layout.row, lambda row: f"{name}: calls{f' {row + 1}' if row else ''}"
        )
        self._write_call_slices(pid, tids, layout)
        sent_us = microseconds(calls.sent_s[failed])
        for row, now_us in zip(failed.tolist(), sent_us.tolist(), strict=True):
            name = f"{calls.functions[calls.function[row]]} failed"
            events.instant(pid, tids[0], "failed call", name, now_us, self._facts(row))

    def write_instances(self) -> None:
        """Write a process per instance: threads with its calls, and counters."""
        calls = self._timeline.calls
        ran = (calls.instance != NONE) & ~calls.failed
        begin_s = np.where(np.isnan(calls.started_s), calls.sent_s, calls.started_s)
        for instance in np.unique(calls.instance[ran]).tolist():
            own = np.flatnonzero(ran & (calls.instance == instance))
            pid = self._events.process(f"{self._prefix}instance {instance}, {self._time}")
            begins, ends = self._span_us(begin_s[own], own)
            layout = call_layout(own, begins, ends)
            tids = self._threads(pid, layout.row, lambda row: f"slot {row + 1}")
            self._write_call_slices(pid, tids, layout)
            tokens = calls.prompt_tokens[own].astype(np.int64) + calls.output_tokens[own]
            self._write_sum(pid, "batch", "calls", begins, ends, np.ones_like(begins))
            self._write_sum(pid, "KV", "tokens", begins, ends, tokens)

    def _threads(self, pid: int, rows: Sequence[int], name: Callable[[int], str]) -> list[int]:
        """Create a thread for each row up to the last of `rows`, at least row 0; return the ids."""
        return [self._events.thread(pid, name(row)) for row in range(max(rows, default=0) + 1)]

    def _write_call_slices(self, pid: int, tids: Sequence[int], layout: Layout) -> None:
        calls = self._timeline.calls
        for call, row, begin, end in zip(
            layout.source, layout.row, layout.begin_us, layout.end_us, strict=True
        ):
            function = calls.functions[calls.function[call]]
            self._events.slice(pid, tids[row], "call", function, begin, end, self._facts(call))

    def _span_us(self, begin_s: Float64, calls: Int64) -> tuple[Int64, Int64]:
        begins = microseconds(begin_s)
        return begins, ends_us(begins, self._timeline.calls.completed_s[calls], self._end_s)

    def write_counters(self) -> None:
        """Write the counters of all agents: calls in flight, floor and lead."""
        calls, pid, events = self._timeline.calls, self._agents_pid, self._events
        sent = np.flatnonzero(~calls.failed)
        begins, ends = self._span_us(calls.sent_s[sent], sent)
        self._write_sum(pid, "calls", "in flight", begins, ends, np.ones_like(begins))
        progress = progress_of(self._timeline)
        times_us = microseconds(progress.time_s)
        for name, unit, values in (
            ("floor", "step", progress.floor),
            ("lead", "steps", progress.front - progress.floor),
        ):
            changed = np.flatnonzero(np.diff(values, prepend=NONE))
            for now_us, value in zip(
                times_us[changed].tolist(), values[changed].tolist(), strict=True
            ):
                events.counter(pid, name, unit, now_us, value)

    def _write_sum(
        self, pid: int, name: str, unit: str, begins: Int64, ends: Int64, amounts: Int64
    ) -> None:
        """Write a counter whose value is the sum of `amounts` over the intervals that are open."""
        times, values = sum_over_time(begins, ends, amounts)
        for now_us, value in zip(times.tolist(), values.tolist(), strict=True):
            self._events.counter(pid, name, unit, now_us, value)

    def _facts_of_step(self, row: int) -> dict[str, Any]:
        """The arguments that a slice of an agent-step shows; `row` is its row in the timeline."""
        rows = self._timeline.executions
        args: dict[str, Any] = {
            "step": int(rows.step[row]),
            "cluster": self._names[rows.cluster[row]],
        }
        if rows.blocked_by[row] != NONE:
            args["blocked_by"] = self._names[rows.blocked_by[row]]
        if rows.wasted[row]:
            args["wasted"] = int(rows.wasted[row])
        if np.isnan(rows.committed_s[row]):
            args["unfinished"] = True
        return args

    def _facts(self, row: int) -> dict[str, Any]:
        """The arguments that a slice of a call shows; `row` is its row in the timeline."""
        calls = self._timeline.calls
        args: dict[str, Any] = {
            "agent": self._names[calls.agent[row]],
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
