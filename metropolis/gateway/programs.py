"""Assigns requests to programs, which begin and end implicitly, as in Agentix (§5).

1. A request that names its program, by header or by the field `user`, belongs to that program.
2. A chat belongs to its conversation: a chat with an answer of the model continues the latest
   conversation that was opened with the same messages.
3. Any other request is a program by itself.

A program ends with a request marked as its last, or after `idle_s` without an open request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from metropolis.gateway.metrics import OTHER
from metropolis.gateway.request_parsing import ClientRequest
from metropolis.policy.base import QueuedRequest

FUNCTIONS_MAX = 1000
"""Maximum number of named functions, and of inferred ones, which therefore displace no named ones:
policies and metrics keep data for each. A new function replaces one without a request for
FUNCTION_IDLE_S; if there is none, it counts as OTHER."""
FUNCTION_IDLE_S = 600.0
GENERATED_PREFIX = " "
"""Prefix of the program names generated here; no client's name begins with it."""


@dataclass(slots=True)
class _Program:
    arrived_s: float
    opening: bytes | None
    open: int = 0
    """Number of requests that wait or are at an engine."""
    answered: str | None = None
    """The function answered last: the upstream of the next request."""
    is_ending: bool = False


class ProgramTracker:
    """Calls `ended` with every program that ends, and `forgotten` with every dropped function."""

    def __init__(
        self,
        idle_s: float,
        ended: Callable[[str], None],
        forgotten: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._idle_s, self._ended, self._forgotten = idle_s, ended, forgotten
        self._programs: dict[str, _Program] = {}
        self._idle: dict[str, float] = {}
        """Programs without an open request and since when, oldest first."""
        self._conversations: dict[bytes, str] = {}
        self._named: dict[str, float] = {}
        self._inferred: dict[str, float] = {}
        """Inferred functions (`_named`: named ones) and their last requests' times, oldest first.
        """
        self._count = count()

    def __len__(self) -> int:
        return len(self._programs)

    def enter(self, arriving: ClientRequest, now_s: float) -> QueuedRequest:
        """Assign an arriving request to its program."""
        id_ = next(self._count)
        name = (
            arriving.program or self._conversation(arriving) or f"{GENERATED_PREFIX}request {id_}"
        )
        opening = arriving.opening if arriving.program is None else None
        program = self._programs.get(name)
        if program is None:
            program = self._programs[name] = _Program(now_s, opening)
        if opening is not None:
            self._conversations[opening] = name
        self._idle.pop(name, None)
        program.open += 1
        program.is_ending |= arriving.is_last or (arriving.program is None and opening is None)
        return QueuedRequest(
            id_,
            name,
            self._function(arriving, now_s),
            arriving.prompt_tokens,
            now_s,
            program.arrived_s,
            arriving.upstream or program.answered,
            arriving.step,
            arriving.stages_left,
            arriving.prefix,
            arriving.model,
            arriving.speculative,
        )

    def leave(self, request: QueuedRequest, now_s: float, *, is_answered: bool) -> None:
        """Record that `request` was answered or cancelled."""
        program = self._programs[request.program]
        program.open -= 1
        if is_answered:
            program.answered = request.function
        if program.open:
            return
        if program.is_ending:
            self._end(request.program)
        else:
            self._idle[request.program] = now_s

    def sweep(self, now_s: float) -> None:
        """End programs that have been idle for `idle_s`."""
        while self._idle:
            name, since_s = next(iter(self._idle.items()))
            if now_s - since_s < self._idle_s:
                return
            del self._idle[name]
            self._end(name)

    def _conversation(self, arriving: ClientRequest) -> str | None:
        if arriving.opening is None:
            return None
        if arriving.is_continued and arriving.opening in self._conversations:
            return self._conversations[arriving.opening]
        return f"{GENERATED_PREFIX}conversation {next(self._count)}"

    def metric_label(self, function: str) -> str:
        """Return the name of `function` in metrics: OTHER beyond the maximum number of names."""
        return function if function in self._named or function in self._inferred else OTHER

    def _function(self, arriving: ClientRequest, now_s: float) -> str:
        if arriving.function == OTHER:
            return OTHER
        known = self._inferred if arriving.is_inferred else self._named
        if known.pop(arriving.function, None) is None and len(known) >= FUNCTIONS_MAX:
            oldest, came_s = next(iter(known.items()))
            if now_s - came_s < FUNCTION_IDLE_S:
                return OTHER
            del known[oldest]
            if oldest not in self._named and oldest not in self._inferred:
                self._forgotten(oldest)
        known[arriving.function] = now_s
        return arriving.function

    def _end(self, name: str) -> None:
        program = self._programs.pop(name)
        if program.opening is not None and self._conversations.get(program.opening) == name:
            del self._conversations[program.opening]
        self._ended(name)
