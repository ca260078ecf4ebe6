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
    """How far a run is."""

    floor: Step
    """All agents have passed the steps below it."""
    newest: Step
    """No agent has passed it."""
    target: Step
    """The run ends before it."""
    calls: int
    """Answers bought so far."""
    tokens: int
    cost: float
    in_flight: int
    paused: bool


class RunControl:
    """Controls the run whose calls `client` sends.

    `simulated`: in virtual time a pause stops the clock, so that it changes no time of the run. In
    real time no new call is sent, and those in flight finish. `can_pause`:
    all calls pass this client; workers on Ray send their own, except in the mode optimistic.
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
