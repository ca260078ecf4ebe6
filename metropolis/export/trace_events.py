"""Chrome's trace event format, written event by event.

The format: "Trace Event Format", Google, linked from
https://chromium.googlesource.com/catapult/+/HEAD/docs/trace-event-format.md. Perfetto's reader
sorts by time, stably, and binds a flow event to the last slice before it in its thread: a thread's
events are written in the order of time, each flow event after its slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, BinaryIO

import msgspec


class TraceEvents:
    """Writes a trace to `file`; times are in whole microseconds."""

    def __init__(self, file: BinaryIO, facts: Mapping[str, Any]) -> None:
        """`facts`: plain data about the whole trace."""
        self._file, self._encode = file, msgspec.json.Encoder().encode
        self._ids = 0
        """The last id. Processes and threads share them: a thread with the id of its process would
        be its main thread."""
        self._file.write(
            b'{"displayTimeUnit":"ms","otherData":' + self._encode(facts) + b',"traceEvents":['
        )
        self._separator = b"\n"

    def process(self, name: str) -> int:
        """Name a process, below the earlier ones; return its id."""
        self._ids += 1
        for kind, args in (("name", {"name": name}), ("sort_index", {"sort_index": self._ids})):
            self._write({"ph": "M", "name": f"process_{kind}", "pid": self._ids, "args": args})
        return self._ids

    def thread(self, pid: int, name: str) -> int:
        """Name a thread of process `pid`, below its earlier ones; return its id."""
        self._ids += 1
        where = {"pid": pid, "tid": self._ids}
        for kind, args in (("name", {"name": name}), ("sort_index", {"sort_index": self._ids})):
            self._write({"ph": "M", "name": f"thread_{kind}", **where, "args": args})
        return self._ids

    def slice(
        self,
        pid: int,
        tid: int,
        kind: str,
        name: str,
        begin_us: int,
        end_us: int,
        args: Mapping[str, Any],
    ) -> None:
        """A slice of a thread; slices of one thread do not overlap."""
        self._write(
            {
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "cat": kind,
                "name": name,
                "ts": begin_us,
                "dur": end_us - begin_us,
                "args": args,
            }
        )

    def instant(
        self, pid: int, tid: int, kind: str, name: str, now_us: int, args: Mapping[str, Any]
    ) -> None:
        """A mark on a thread."""
        event = {"ph": "i", "s": "t", "pid": pid, "tid": tid, "cat": kind, "name": name}
        self._write(event | {"ts": now_us, "args": args})

    def counter(self, pid: int, name: str, unit: str, now_us: int, value: int) -> None:
        """A counter of a process has `value` from `now_us` on; Perfetto calls it "NAME UNIT"."""
        event = {"ph": "C", "pid": pid, "name": name, "ts": now_us, "args": {unit: value}}
        self._write(event)

    def flow(
        self, pid: int, tid: int, kind: str, number: int, now_us: int, *, is_end: bool
    ) -> None:
        """The begin or end of arrow `number`, in the slice of the thread at `now_us`."""
        event = {"ph": "f", "bp": "e"} if is_end else {"ph": "s"}
        where = {"pid": pid, "tid": tid, "cat": kind, "name": kind}
        self._write(event | where | {"id": number, "ts": now_us})

    def close(self) -> None:
        """Write the end; the file stays open."""
        self._file.write(b"\n]}\n")

    def _write(self, event: Mapping[str, Any]) -> None:
        self._file.write(self._separator + self._encode(event))
        self._separator = b",\n"


def valid_text(text: str) -> str:
    """`text` with each lone surrogate, which UTF-8 cannot encode, replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
