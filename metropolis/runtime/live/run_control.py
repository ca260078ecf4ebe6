"""Pauses a run, and says how far it is; for other threads than that of the run."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from metropolis.llm.client import Client
from metropolis.runtime.live.executor import Executor
from metropolis.types import Step


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run."""

    floor: Step
    """The smallest step that an agent still has to run."""
    newest: Step
    """The greatest step that an agent has reached."""
    target: Step
    """The step before which the run ends."""
    calls: int
    """Number of answers bought so far; `tokens` and `cost` are theirs."""
    tokens: int
    cost: float
    in_flight: int
    paused: bool


class RunControl:
    """Controls the run whose calls `client` sends.

    `simulated` says whether the run is in virtual time: then a pause stops the clock, and changes
    no time of the run. In real time, no new call is sent during a pause, and calls in flight are
    completed. `can_pause` says whether all calls pass `client`: workers on Ray send their own
    calls, except in the mode optimistic.
    """

    def __init__(self, client: Client, *, simulated: bool, can_pause: bool) -> None:
        self._client, self._simulated, self.can_pause = client, simulated, can_pause
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executor: Executor | None = None
        self._target = 0
        self.paused = False

    def begin(self, loop: asyncio.AbstractEventLoop, executor: Executor, target: Step) -> None:
        """The run begins, on `loop`."""
        self._loop, self._executor, self._target = loop, executor, target
        self._apply()

    def end(self) -> None:
        """The run has ended."""
        self._loop = None
        self._client.gate.release()

    def pause(self) -> None:
        """Send no new call until `resume`; without effect unless `can_pause`."""
        self._set(self.can_pause)

    def resume(self) -> None:
        """End the pause."""
        self._set(False)

    def progress(self) -> RunProgress | None:
        """How far the run is; None: it has not begun."""
        executor = self._executor
        if executor is None:
            return None
        bought = self._client.bought
        return RunProgress(
            floor=executor.floor,
            newest=executor.newest_step,
            target=self._target,
            calls=bought.calls,
            tokens=bought.prompt_tokens + bought.output_tokens,
            cost=bought.cost,
            in_flight=self._client.gate.in_flight,
            paused=self.paused,
        )

    def _set(self, paused: bool) -> None:
        self.paused = paused
        if (loop := self._loop) is not None:
            with suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(self._apply)

    def _apply(self) -> None:
        self._client.gate.hold(self.paused and not self._simulated)
