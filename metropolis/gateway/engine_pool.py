"""The engines of a gateway: their probes, and the requests to move when one hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Protocol

from metropolis.gateway.cache_choice import CacheChoice
from metropolis.gateway.engine_client import PROBE_S, EngineClient, Probe, Reply
from metropolis.gateway.errors import EngineLostError
from metropolis.gateway.models import UnknownModelError, list_of, routed_by, unknown_model
from metropolis.gateway.scheduler_driver import SchedulerDriver
from metropolis.policy.base import QueuedRequest
from metropolis.reuse.base import CacheReuse
from metropolis.types import MetropolisError

PROBE_EVERY_S = 2.0
PROBE_LOST_S = 0.5
HANGS_PROBES = 2
"""Consecutive probes without an answer after which an engine counts as hanging."""


class Movable(Protocol):
    """A request in progress."""

    def move_from(self, instance: int) -> None:
        """Leave `instance`, which hangs, if it has the request and another engine can serve it."""


class EnginePool:
    """Probes engines, and reports to `scheduling` which answer; `log` receives changes.

    `reuse` chooses which caches prefills start from, on engines that take such orders.

    The dispatcher learns the KV cache size of each engine, unless `learns_capacity` is False.
    Raises MetropolisError when an engine is listed twice.
    """

    def __init__(
        self,
        engines: Sequence[EngineClient],
        scheduling: SchedulerDriver,
        log: Callable[[str], None],
        *,
        learns_capacity: bool,
        reuse: CacheReuse | None = None,
    ) -> None:
        names = [engine.name for engine in engines]
        for name in names:
            if names.count(name) > 1:
                raise MetropolisError(f"the engine at {name} is listed twice; list it once")
        self.engines, self.scheduling = engines, scheduling
        self._log, self._learns_capacity = log, learns_capacity
        for engine in engines:
            engine.log = log
        self._caches = CacheChoice(reuse, len(engines)) if reuse else None
        self.in_progress: set[Movable] = set()
        self.unordered = [0] * len(engines)
        """Number of unordered requests at each engine."""
        self.failed_probes = [0] * len(engines)
        """Consecutive failed probes by engine; `silent_probes`: those that timed out."""
        self.silent_probes = [0] * len(engines)
        self._suspected = [asyncio.Event() for _ in engines]
        """Set to request a probe of the engine."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_known(self) -> bool:
        """Whether all engines are SGLang or vLLM."""
        return all(engine.is_known for engine in self.engines)

    async def start(self) -> None:
        """Probe every engine once, then periodically in the background."""
        probed = await asyncio.gather(*(engine.probe() for engine in self.engines))
        instances = range(len(self.engines))
        for instance in instances:
            self._apply_probe(instance, probed[instance])
        loops = [*map(self._watch, instances), *map(self._count_preemptions, instances)]
        self._tasks = [asyncio.ensure_future(loop) for loop in loops]

    async def close(self) -> None:
        """Stop probing and close connections."""
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(engine.close() for engine in self.engines))
        for error in ended:
            if error is not None and not isinstance(error, asyncio.CancelledError):
                raise error

    def reuse_fields(self, request: QueuedRequest, instance: int) -> dict[str, Any]:
        """The fields that tell the engine what `request` may start from; raises PluginError."""
        engine = self.engines[instance]
        if not engine.takes_reuse:
            return {}
        if self._caches is None:
            return {"reuse": None}
        capacity_tokens = self.scheduling.capacity_tokens[instance]
        return {"reuse": self._caches.order(request, instance, engine.traits, capacity_tokens)}

    def suspect(self, instance: int, error: EngineLostError) -> None:
        """Treat the engine as down until it has been probed."""
        if self.scheduling.is_up[instance]:
            self._log(str(error))
            self._lose(instance)
        self._suspected[instance].set()

    def _lose(self, instance: int) -> None:
        """The engine, which was up, does not answer, or may have restarted: its cache is lost."""
        self.scheduling.set_is_up(instance, False)
        self.scheduling.scheduler.instance_lost(instance)
        if self._caches is not None:
            self._caches.lost(instance)

    def routed_by(self, model: str | None) -> str | None:
        """See `models.routed_by`."""
        return routed_by(model, self.scheduling.scheduler.models, self.scheduling.is_up)

    def serving(self, model: str | None) -> frozenset[int]:
        """Return the engines that serve `model`, a name that `routed_by` returned."""
        return self.scheduling.scheduler.models.serving(model)

    def unknown_model(self) -> UnknownModelError:
        """Return the error of a request whose model turned out to be unknown."""
        return unknown_model(self.scheduling.scheduler.models.listed)

    async def models(
        self, path: str, headers: Mapping[str, str]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return status, headers and body of the list of all models; raises EngineLostError."""
        up = [instance for instance, is_up in enumerate(self.scheduling.is_up) if is_up]
        replies = await asyncio.gather(*(self._get(instance, path, headers) for instance in up))
        if not any(replies):
            raise EngineLostError("no engine answers")
        return list_of([reply for reply in replies if reply is not None])

    async def _get(self, instance: int, path: str, headers: Mapping[str, str]) -> Reply | None:
        """Return an engine's answer to a GET; None if it is lost."""
        engine = self.engines[instance]
        try:
            async with asyncio.timeout(PROBE_S):
                reply = await engine.send("GET", path, headers)
        except TimeoutError:
            late = TimeoutError(f"it did not answer within {PROBE_S:g} s")
            self.suspect(instance, engine.lost(late))
            return None
        except EngineLostError as error:
            self.suspect(instance, error)
            return None
        reply.close()
        return reply

    def response_lost(self, instance: int) -> EngineLostError:
        """The error for a request that refers to a response of an unresponsive engine."""
        return EngineLostError(
            f"the engine at {self.engines[instance].name}, which generated the response that the "
            "request refers to, does not answer; send the conversation without it"
        )

    def _apply_probe(self, instance: int, probe: Probe) -> None:
        is_up = probe.is_up
        if self.scheduling.is_up[instance] != is_up or not self._tasks:  # the first probe
            self._log(probe.sentence)
        scheduler, models = self.scheduling.scheduler, probe.models or None
        if probe.models is not None and models != scheduler.models.of[instance]:
            scheduler.models_changed(instance, models, self.scheduling.clock())
        if is_up and self._learns_capacity:
            tokens = self.engines[instance].traits.capacity_tokens
            if tokens is not None:
                scheduler.capacity_changed(instance, tokens)
        self.failed_probes[instance] = 0 if is_up else self.failed_probes[instance] + 1
        is_silent = self.engines[instance].is_silent
        self.silent_probes[instance] = self.silent_probes[instance] + 1 if is_silent else 0
        if is_up:
            self.scheduling.set_is_up(instance, True)
        elif self.scheduling.is_up[instance]:
            self._lose(instance)
        if self.silent_probes[instance] >= HANGS_PROBES and any(self.scheduling.is_up):
            for request in [*self.in_progress]:
                request.move_from(instance)

    async def _watch(self, instance: int) -> None:
        while True:
            is_up = self.scheduling.is_up[instance]
            with suppress(TimeoutError):
                async with asyncio.timeout(PROBE_EVERY_S if is_up else PROBE_LOST_S):
                    await self._suspected[instance].wait()
            self._suspected[instance].clear()
            try:
                self._apply_probe(instance, await self.engines[instance].probe())
            except Exception as error:  # noqa: BLE001 -- without probes a lost engine stays lost
                self._log(f"a probe of {self.engines[instance].name} failed: {error!r}")

    async def _count_preemptions(self, instance: int) -> None:
        """The status monitor of Kairos (§3): preemptions make its dispatcher suspend an engine."""
        engine, before = self.engines[instance], inf  # preemptions before the first count are old
        while True:
            await asyncio.sleep(PROBE_EVERY_S)
            count = await engine.preemptions() if engine.is_known else None
            if not self.scheduling.is_up[instance]:
                before = inf
            elif count is not None:
                if count > before:
                    self.scheduling.engine_preempted(instance)
                before = count
