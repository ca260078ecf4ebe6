"""Reports which agent a run waits for, if the run makes no progress and waits for no model.

A thread observes the open invocations, so that it works even if one of them blocks the event loop.
It then reports that one only, since the others cannot proceed.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from metropolis.workers.invocations import Invocation, Invocations
from metropolis.world.user_errors import Line, own_line

STALL_S = 60.0
LOOK_S = 1.0
ENDING_S = 3.0
"""How long an interrupted run may take to end before the watchdog reports what it waits for."""


def print_message(sentence: str) -> None:
    """Print `sentence` on standard error."""
    sys.stderr.write(f"metropolis: {sentence}\n")


class Watchdog:
    """Observes `invocations`, whose tasks run on `loop`, while entered.

    Calls `report` with a sentence for each that is silent for `stall_s` seconds, and again after
    twice that time, four times and so on. 0: never.
    """

    def __init__(
        self,
        invocations: Invocations,
        loop: asyncio.AbstractEventLoop,
        stall_s: float = STALL_S,
        report: Callable[[str], object] = print_message,
    ) -> None:
        self._invocations, self._loop = invocations, loop
        self._stall_s, self._report = stall_s, report
        self._look_s = min(LOOK_S, stall_s / 4) if stall_s else LOOK_S
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._loop_thread = threading.get_ident()
        self._alive_wall_s = self._awake_wall_s = time.monotonic()
        """When the loop last ran, and since when it has not been blocked."""
        self._beats = True
        self._ending_wall_s: float | None = None

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()

    def ending(self) -> None:
        """The run was interrupted: soon report what it waits for. Safe in signal handlers."""
        self._ending_wall_s = time.monotonic()

    def _watch(self) -> None:
        while not self._ended.wait(self._look_s):
            if self._beats:
                self._beats = False
                try:
                    self._loop.call_soon_threadsafe(self._beat)
                except RuntimeError:  # the loop is closed
                    return
            self._look(time.monotonic())

    def _beat(self) -> None:
        now = time.monotonic()
        if self._is_blocked(now):
            self._awake_wall_s = now
        self._alive_wall_s, self._beats = now, True

    def _look(self, now: float) -> None:
        stalled = []
        for invocation, silent_s in self._silent(now):
            if silent_s < invocation.reported_s:  # the invocation has made progress
                invocation.reported_s = 0.0
            if self._stall_s and silent_s >= max(self._stall_s, 2 * invocation.reported_s):
                stalled.append((silent_s, invocation))
        if stalled:
            for silent_s, invocation in stalled:
                invocation.reported_s = silent_s
            silent_s, invocation = max(stalled, key=lambda found: found[0])
            others = f"; {len(stalled) - 1} others, too" if len(stalled) > 1 else ""
            where = self._at(invocation)
            self._report(f"{invocation}{where} has run for {silent_s:.0f} s without a call{others}")
        ending = self._ending_wall_s
        if ending is not None and now - ending >= ENDING_S:
            self._ending_wall_s = None
            for invocation, _ in self._silent(now):
                late = f"{invocation}{self._at(invocation)}"
                self._report(f"the run ends after {late}; Ctrl-C again ends it at once")
                break

    def _silent(self, now: float) -> Iterator[tuple[Invocation, float]]:
        """Invocations that wait for no model, and the duration of their silence."""
        if self._is_blocked(now):
            invocation = self._invocations.of_task(asyncio.current_task(self._loop))
            if invocation is not None:
                yield invocation, now - max(invocation.active_wall_s, self._alive_wall_s)
            return
        for invocation in list(self._invocations.open):
            since = invocation.silent_since_wall_s()
            if since is not None:
                yield invocation, now - max(since, self._awake_wall_s)

    def _is_blocked(self, now: float) -> bool:
        return now - self._alive_wall_s > 3 * self._look_s

    def _at(self, invocation: Invocation) -> str:
        thread = invocation.thread
        if thread is None and self._is_blocked(time.monotonic()):
            thread = self._loop_thread
        lines = list(_awaited(invocation) if thread is None else _running(thread))
        return f" (at {own_line(lines, invocation.owner)})" if lines else ""


def _awaited(invocation: Invocation) -> Iterator[Line]:
    """The stack of the invocation's task at its await, the innermost line last."""
    awaited: Any = None if invocation.task is None else invocation.task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            yield frame.f_code.co_filename, frame.f_lineno
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)


def _running(thread: int) -> Iterator[Line]:
    """The stack of a thread, the innermost line last."""
    frame = sys._current_frames().get(thread)
    lines = []
    while frame is not None:
        lines.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return reversed(lines)
