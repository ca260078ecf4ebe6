"""The programs that requests belong to: they begin and end by themselves, as in Agentix (§5).

1. A request that names its program, by header or by the field `user`, belongs to that.
2. A chat belongs to its conversation: one in which the model has spoken continues the latest one
   that was opened with the same messages.
3. Any other request is a program of its own.

A program ends with the request that says so, or when none of its requests has been open for
`idle_s`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from metropolis.gateway.metrics import OTHER
from metropolis.gateway.request_parsing import ParsedRequest
from metropolis.policy.base import QueuedRequest

FUNCTIONS_MAX = 1000
"""Of those named, and of those guessed, so that these crowd out none of those: policies and metrics
keep something for each. A new one takes the place of one that has not come for FUNCTION_IDLE_S; if
there is none, it is OTHER."""
FUNCTION_IDLE_S = 600.0
OWN = " "
"""Begins the names that programs get here, and no client's."""


@dataclass(slots=True)
class _Program:
    arrived_s: float
    opening: bytes | None
    open: int = 0
    """Requests that wait or are at an engine."""
    led: str | None = None
    """The function answered last, which leads to what comes next."""
    is_ending: bool = False


class ProgramTracker:
    """Tells `ended` of every program that has ended, and `forgotten` of functions."""

    def __init__(
        self,
        idle_s: float,
        ended: Callable[[str], None],
        forgotten: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._idle_s, self._ended, self._forgotten = idle_s, ended, forgotten
        self._programs: dict[str, _Program] = {}
        self._idle: dict[str, float] = {}
        """Since when; the longest first."""
        self._conversations: dict[bytes, str] = {}
        self._named: dict[str, float] = {}
        self._guessed: dict[str, float] = {}
        """Functions, and when each came last; the longest ago first."""
        self._count = count()

    def __len__(self) -> int:
        return len(self._programs)

    def enter(self, asked: ParsedRequest, now_s: float) -> QueuedRequest:
        """A request has come."""
        id_ = next(self._count)
        name = asked.program or self._conversation(asked) or f"{OWN}request {id_}"
        opening = asked.opening if asked.program is None else None
        program = self._programs.get(name)
        if program is None:
            program = self._programs[name] = _Program(now_s, opening)
        if opening is not None:
            self._conversations[opening] = name
        self._idle.pop(name, None)
        program.open += 1
        program.is_ending |= asked.is_last or (asked.program is None and opening is None)
        return QueuedRequest(
            id_,
            name,
            self._function(asked, now_s),
            asked.prompt_tokens,
            now_s,
            program.arrived_s,
            asked.upstream or program.led,
            asked.step,
            asked.stages_left,
            asked.prefix,
        )

    def leave(self, request: QueuedRequest, now_s: float, *, is_answered: bool) -> None:
        """It has been answered, or nobody waits for it any more."""
        program = self._programs[request.program]
        program.open -= 1
        if is_answered:
            program.led = request.function
        if program.open:
            return
        if program.is_ending:
            self._end(request.program)
        else:
            self._idle[request.program] = now_s

    def sweep(self, now_s: float) -> None:
        """End what has been idle for long."""
        while self._idle:
            name, since_s = next(iter(self._idle.items()))
            if now_s - since_s < self._idle_s:
                return
            del self._idle[name]
            self._end(name)

    def _conversation(self, asked: ParsedRequest) -> str | None:
        if asked.opening is None:
            return None
        if asked.is_continued and asked.opening in self._conversations:
            return self._conversations[asked.opening]
        return f"{OWN}conversation {next(self._count)}"

    def shown(self, function: str) -> str:
        """Its name in metrics, which keep those that are told apart."""
        return function if function in self._named or function in self._guessed else OTHER

    def _function(self, asked: ParsedRequest, now_s: float) -> str:
        if asked.function == OTHER:
            return OTHER
        known = self._guessed if asked.is_guessed else self._named
        if known.pop(asked.function, None) is None and len(known) >= FUNCTIONS_MAX:
            oldest, came_s = next(iter(known.items()))
            if now_s - came_s < FUNCTION_IDLE_S:
                return OTHER
            del known[oldest]
            if oldest not in self._named and oldest not in self._guessed:
                self._forgotten(oldest)
        known[asked.function] = now_s
        return asked.function

    def _end(self, name: str) -> None:
        program = self._programs.pop(name)
        if program.opening is not None and self._conversations.get(program.opening) == name:
            del self._conversations[program.opening]
        self._ended(name)
