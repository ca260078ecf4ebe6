"""The copies of a node's model: each is an engine, started again when it dies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metropolis.names import shortened
from metropolis.plan.machine import ExecutionPlan
from metropolis.plan.placement import Gpus
from metropolis.plan.running.engine import HANG_S, Engine, Ports
from metropolis.plan.running.engine_command import EngineCommand
from metropolis.types import MetropolisError

DEATHS_MAX = 3
"""The run ends after so many deaths of engines: of one copy in a row, without an answer in between,
or each time with the same request in flight."""
SUSPECTS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Limits of requests and times of engines."""

    at_once: int = 256
    """Maximum requests in flight for each copy."""
    drain_s: float = 5.0
    """Maximum time that a copy waits for its requests in flight when it is stopped."""
    wait_s: float = 1800.0
    """Maximum time from the start of an engine until it answers."""
    answer_s: float = 3600.0
    """Maximum time of one answer."""


class ModelCopy:
    """A copy of a node's model on `gpus`.

    `losses`: how many engines ended with each request of the node in flight, by index; of all
    copies. `log` receives a sentence when an engine dies.
    """

    def __init__(
        self,
        name: str,
        command: EngineCommand,
        ports: Ports,
        gpus: tuple[int, ...],
        log_file: Path,
        options: EngineOptions,
        losses: Counter[int],
        log: Callable[[str], None],
    ) -> None:
        self.name, self.gpus = name, gpus
        self._command, self._ports, self._log_file = command, ports, log_file
        self._options, self._losses, self._log = options, losses, log
        self.engine: Engine | None = None
        """The engine of the copy; None while there is none that answers."""
        self.in_flight: dict[int, asyncio.Task[bool]] = {}
        """Index of a request in flight -> its task."""
        self.deaths = 0
        """Deaths of engines in a row, without an answer in between."""
        self.is_stopping = False
        self.supervision: asyncio.Task[None] | None = None

    def has_room(self, requests_max: int) -> bool:
        """Whether it can take a request, and has fewer than `requests_max`."""
        is_up = self.engine is not None and not self.is_stopping
        is_ending = self.supervision is None or self.supervision.cancelling()
        limit = min(self._options.at_once, requests_max)
        return is_up and not is_ending and len(self.in_flight) < limit

    async def supervise(self, on_ready: Callable[[], None]) -> None:
        """Keep an engine running until cancelled; call `on_ready` whenever one answers.

        An engine that hangs is ended. Raises MetropolisError after DEATHS_MAX.
        """
        while not self.is_stopping:
            port, answer_s = self._ports.take(), self._options.answer_s
            engine = Engine(self._command, port, self.gpus, self._log_file, answer_s)
            try:
                if await engine.is_ready(self._options.wait_s):
                    self.engine = engine
                    on_ready()
                await self._run_out(engine)
                self._died(engine)
            finally:
                self.engine = None
                engine.is_lost.set()
                await engine.stop()

    async def stop(self) -> None:
        """Wait for the requests in flight, at most `drain_s`; cancel the others; end the engine."""
        self.is_stopping = True
        if self.in_flight:
            await asyncio.wait(self.in_flight.values(), timeout=self._options.drain_s)
        ending: list[asyncio.Task[Any]] = [*self.in_flight.values()]
        if self.supervision is not None:
            ending.append(self.supervision)
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    async def _run_out(self, engine: Engine) -> None:
        """Wait until the engine has ended or hangs."""
        waits = [asyncio.ensure_future(each) for each in (engine.ended(), engine.hangs())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    def _died(self, engine: Engine) -> None:
        how = f"did not respond for {HANG_S:g} s"
        if engine.exit_code is not None:
            how = f"ended with exit code {engine.exit_code}"
        self.deaths += 1
        self._losses.update(self.in_flight.keys())
        suspects = [index for index in self.in_flight if self._losses[index] >= DEATHS_MAX]
        if suspects or self.deaths == DEATHS_MAX:
            when = " in a row without an answer"
            if suspects:
                which = shortened([*map(str, sorted(suspects))], SUSPECTS_SHOWN)
                when = f", each time with these of its requests in flight: {which}"
            raise MetropolisError(
                f"{self.name}: engines were lost {DEATHS_MAX} times{when}; the last one {how}; "
                f"log: {self._log_file}: {engine.last_line()}"
            )
        again = f" and {len(self.in_flight)} in flight are sent again" if self.in_flight else ""
        then = "" if self.is_stopping else f"; it is started again{again}"
        self._log(f"{self.name}: its engine {how}{then}; log: {self._log_file}")


@dataclass
class RunningNode:
    """A node on GPUs."""

    plan: ExecutionPlan
    gpus: Gpus
    copies: list[ModelCopy] = field(default_factory=list)
    ready_s: float | None = None
    """Time at which all copies had answered for the first time, or the node was stopped before
    that, in seconds since the start of the run."""

    def free_copy(self, open_requests: int) -> ModelCopy | None:
        """The copy with the fewest requests in flight; None if none can take one.

        No copy gets more than its share of the node's open requests: otherwise the first copy to
        answer would take all of them.
        """
        share = -(-open_requests // len(self.copies))
        free = [copy for copy in self.copies if copy.has_room(share)]
        return min(free, key=lambda copy: len(copy.in_flight), default=None)

    async def stop(self) -> None:
        """Stop all copies."""
        await asyncio.gather(*(copy.stop() for copy in self.copies))
