"""Timelines as a trace for Perfetto and chrome://tracing; docs/export.md explains what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from metropolis.export.trace_events import TraceEvents, rows_without_overlap, valid_text
from metropolis.timeline.reader import NONE, Timeline

Int64 = npt.NDArray[np.int64]
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
        self._events, self._arrows = events, arrows
        self._timeline = timeline = lane.timeline
        self._names = [valid_text(name) for name in lane.agents]
        self._prefix = f"{valid_text(lane.name)}: " if lane.name else ""
        self._time = f"{timeline.meta.clock} time"
        rows, calls = timeline.executions, timeline.calls
        times = (rows.dispatched_s, rows.committed_s, calls.sent_s, calls.completed_s)
        self._end_s = max((float(np.nanmax(one, initial=0.0)) for one in times), default=0.0)
        self._by_agent = np.lexsort((rows.step, rows.dispatched_s, rows.agent))
        self._begin_us = _us(rows.dispatched_s)
        self._committed_us = _us(self._until_end(rows.committed_s))
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
        ended, begun = self._arrows_from, self._arrows_to
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
            if row in begun:
                events.flow(pid, tid, WAITS, begun[row], begin, is_end=True)
            for arrow in ended.get(row, ()):
                events.flow(pid, tid, WAITS, arrow, max(begin, end - 1), is_end=False)

    def _write_calls(self, name: str, own: Int64) -> None:
        if not len(own):
            return
        calls, pid, events = self._timeline.calls, self._agents_pid, self._events
        failed = own[calls.failed[own]]
        others = own[~calls.failed[own]]
        begins = _us(calls.sent_s[others]).tolist()
        ends = _us(self._until_end(calls.completed_s[others])).tolist()
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
            ends = _us(self._until_end(calls.completed_s[own]))
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
        begins, ends = _us(calls.sent_s[sent]), _us(self._until_end(calls.completed_s[sent]))
        self._write_sum(pid, "calls in flight", begins, ends, np.ones_like(begins))
        changes_us, floor, front = self._floor_and_front()
        for name, values in (("floor", floor), ("lead", front - floor)):
            changed = np.flatnonzero(np.diff(values, prepend=NONE))
            for now_us, value in zip(
                changes_us[changed].tolist(), values[changed].tolist(), strict=True
            ):
                events.counter(pid, name, now_us, value)

    def _floor_and_front(self) -> tuple[Int64, Int64, Int64]:
        """Times, and from each on the smallest and the greatest step that agents are at."""
        rows = self._timeline.executions
        committed = ~np.isnan(rows.committed_s)
        first = int(rows.step.min(initial=0)) if not len(rows) else int(rows.step.min())
        number = self._timeline.steps - first
        step, now_us = rows.step[committed] - first, self._committed_us[committed]
        last_us = np.zeros(number, np.int64)
        first_us = np.full(number, np.iinfo(np.int64).max)
        np.maximum.at(last_us, step, now_us)
        np.minimum.at(first_us, step, now_us)
        commits = np.bincount(step, minlength=number)
        whole = int(np.argmin(np.append(commits == len(self._names), False)))
        floor_us = np.maximum.accumulate(last_us[:whole])
        front_us = np.minimum.accumulate(first_us[commits > 0][::-1])[::-1]
        start_us = self._begin_us[:1] if not len(rows) else np.array([self._begin_us.min()])
        times = np.unique(np.concatenate([start_us, floor_us, front_us]))
        floor = first + np.searchsorted(floor_us, times, "right")
        front = first + np.searchsorted(front_us, times, "right")
        return times, floor.astype(np.int64), front.astype(np.int64)

    def _write_sum(
        self, pid: int, name: str, begins: Int64, ends: Int64, amounts: Int64
    ) -> None:
        """A counter: the sum of `amounts` over the intervals that are open."""
        times, which = np.unique(np.concatenate([begins, ends]), return_inverse=True)
        changes = np.zeros(len(times), np.int64)
        np.add.at(changes, which, np.concatenate([amounts, -amounts]))
        values = np.cumsum(changes)
        changed = np.flatnonzero(changes)
        for now_us, value in zip(times[changed].tolist(), values[changed].tolist(), strict=True):
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

    @cached_property
    def _arrow_rows(self) -> tuple[list[int], list[int]]:
        """The rows of blockers and of those that they blocked."""
        rows = self._timeline.executions
        committed_us = self._committed_us[self._by_agent]
        committed_us = np.where(
            np.isnan(rows.committed_s[self._by_agent]), np.iinfo(np.int64).max, committed_us
        )
        bounds = np.searchsorted(rows.agent[self._by_agent], np.arange(len(self._names) + 1))
        blocked = np.flatnonzero(rows.blocked_by != NONE)
        sources, targets = [], []
        for blocker in np.unique(rows.blocked_by[blocked]).tolist():
            own = blocked[rows.blocked_by[blocked] == blocker]
            first, last = bounds[blocker], bounds[blocker + 1]
            before = np.searchsorted(committed_us[first:last], self._begin_us[own], "right")
            known = before > 0
            sources += self._by_agent[first + before[known] - 1].tolist()
            targets += own[known].tolist()
        return sources, targets

    @cached_property
    def _numbered_arrows(self) -> list[tuple[int, int, int]]:
        return [
            (next(self._arrows), source, target)
            for source, target in zip(*self._arrow_rows, strict=True)
        ]

    @cached_property
    def _arrows_from(self) -> dict[int, list[int]]:
        """Row of a blocker -> its arrows."""
        found: dict[int, list[int]] = {}
        for arrow, source, _ in self._numbered_arrows:
            found.setdefault(source, []).append(arrow)
        return found

    @cached_property
    def _arrows_to(self) -> dict[int, int]:
        """Row of a blocked agent-step -> its arrow."""
        return {target: arrow for arrow, _, target in self._numbered_arrows}

    def _until_end(self, times_s: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """`times_s`; where there is none: the end of the timeline."""
        return np.where(np.isnan(times_s), self._end_s, times_s)


def _us(times_s: npt.NDArray[np.float64]) -> Int64:
    return np.rint(times_s * 1e6).astype(np.int64)
