"""Checks of a trace against Chrome's trace event format, as Perfetto and chrome://tracing read it.

Perfetto's own reader is a binary that its Python package downloads, so it cannot be used here.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

REQUIRED = {
    "M": {"name", "pid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "i": {"name", "cat", "pid", "tid", "ts", "s", "args"},
    "C": {"name", "pid", "ts", "args"},
    "s": {"name", "cat", "pid", "tid", "ts", "id"},
    "f": {"name", "cat", "pid", "tid", "ts", "id", "bp"},
}
OPTIONAL = {"M": {"tid"}}
Event = dict[str, Any]


def refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is not JSON")


def check_trace(content: bytes) -> list[Event]:
    """The events of a trace, if it is well-formed."""
    text = content.decode("utf-8")
    trace = json.loads(text, parse_constant=refuse)
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    events: list[Event] = trace["traceEvents"]
    for event in events:
        kind = event["ph"]
        assert REQUIRED[kind] <= event.keys() - {"ph"} <= REQUIRED[kind] | OPTIONAL.get(kind, set())
        assert all(
            type(event[name]) is int for name in ("pid", "tid", "ts", "dur") if name in event
        )
        assert event.get("dur", 0) >= 0
        assert not has_surrogates(event)
    _check_names(events)
    _check_slices(events)
    _check_flows(events)
    return events


def has_surrogates(value: Any) -> bool:
    return any("\ud800" <= one <= "\udfff" for one in json.dumps(value, ensure_ascii=False))


def _check_names(events: list[Event]) -> None:
    """Each process and thread is named once, before its events; ids are unique."""
    processes: dict[int, str] = {}
    threads: dict[int, int] = {}
    for event in events:
        if (event["ph"], event["name"]) == ("M", "process_name"):
            assert event["pid"] not in processes
            processes[event["pid"]] = event["args"]["name"]
        elif (event["ph"], event["name"]) == ("M", "thread_name"):
            assert event["tid"] not in threads
            threads[event["tid"]] = event["pid"]
        assert event["pid"] in processes
        assert "tid" not in event or threads[event["tid"]] == event["pid"]
    assert not processes.keys() & threads.keys()
    assert len(set(processes.values())) == len(processes)


def _check_slices(events: list[Event]) -> None:
    """The slices of a thread are in the order of time and do not overlap."""
    ends: dict[int, int] = {}
    for event in events:
        if event["ph"] == "X":
            assert event["ts"] >= ends.get(event["tid"], event["ts"])
            ends[event["tid"]] = event["ts"] + event["dur"]


def _check_flows(events: list[Event]) -> None:
    """Every arrow has one begin and one end, forwards in time, each in the slice before it."""
    pairs: defaultdict[int, list[Event]] = defaultdict(list)
    last: dict[int, Event] = {}
    for event in sorted((one for one in events if "ts" in one), key=lambda one: int(one["ts"])):
        if event["ph"] == "X":
            last[event["tid"]] = event
        elif event["ph"] in "sf":
            bound = last[event["tid"]]
            end = bound["ts"] + max(1, bound["dur"])
            assert bound["ts"] <= event["ts"] < end, "it binds to no slice"
            pairs[event["id"]].append(event | {"bound": bound})
    for pair in pairs.values():
        begin, end = sorted(pair, key=lambda one: "sf".index(one["ph"]))
        assert (begin["ph"], end["ph"], end["bp"]) == ("s", "f", "e")
        assert (begin["name"], begin["cat"]) == (end["name"], end["cat"])
        assert begin["ts"] <= end["ts"] == end["bound"]["ts"]
        assert begin["bound"]["ts"] + begin["bound"]["dur"] <= end["ts"]
