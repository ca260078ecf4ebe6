"""Agents of an optimistic run decide in actors on Ray; see `optimistic/remote_decisions.py`."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from metropolis.types import MetropolisError
from metropolis.workers.module_shipping import ImportedSources, not_importable, sources_of
from metropolis.workers.optimistic.decisions import WorkerLostError
from metropolis.workers.optimistic.minds import Minds
from metropolis.workers.optimistic.remote_decisions import RemoteDecisions
from metropolis.workers.optimistic.remote_host import HostSpec, ProceedHost
from metropolis.workers.optimistic.remote_messages import Command, Message
from metropolis.workers.ray import SPREAD, WatchedActor, cause_of, print_stalls
from metropolis.workers.ray_cluster import join_ray, worker_count
from metropolis.workers.ray_pickling import dumps, loads, pickled_spec, unpickled_spec
from metropolis.workers.watchdog import Watchdog


class RayDecisions(RemoteDecisions):
    """See RemoteDecisions; on the cluster at `address`, or one on this machine that ends with it.

    The number of workers is `count`, by default the number of CPUs.
    """

    def __init__(
        self, spec: HostSpec, minds: Minds, count: int | None, address: str | None
    ) -> None:
        """Raises MetropolisError if Ray cannot start, or cannot run the world's code."""
        pickled, modules = pickled_spec(spec)
        self._leave_cluster = join_ray(count, address)
        arguments = ray.put(pickled), sources_of(modules)
        remote = ray.remote(**SPREAD)(_Host)

        def connect() -> _RayLink:
            return _RayLink(remote.remote(*arguments))

        super().__init__(connect, worker_count(count), minds, dumps, loads)

    async def end(self) -> None:
        """See Decisions."""
        await super().end()
        self._leave_cluster()


class _Host(WatchedActor):
    def __init__(self, spec: bytes, sources: Mapping[str, tuple[str, str]]) -> None:
        super().__init__()
        sys.meta_path.insert(0, ImportedSources(sources))
        self._spec: HostSpec = unpickled_spec(spec)
        self._host = ProceedHost(self._spec, dumps, loads)
        self._watchdog: Watchdog | None = None

    async def receive(self, batch: int, commands: Sequence[Command]) -> None:
        self._host.receive(batch, commands)

    async def messages(self) -> list[Message]:
        if self._watchdog is None:
            spec, loop = self._spec, asyncio.get_running_loop()
            self._watchdog = Watchdog(spec.invocations, loop, spec.stall_s, self.stalls.put)
            self._watchdog.__enter__()  # until the process ends
            gc.collect()  # otherwise collections scan all that Ray imports
            gc.freeze()
        return await self._host.messages()


class _RayLink:
    """See Link."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._watching: asyncio.Task[None] | None = None

    def send(self, batch: int, commands: Sequence[Command]) -> None:
        """See Link."""
        self._actor.receive.remote(batch, commands)

    async def receive(self) -> Sequence[Message]:
        """See Link."""
        if self._watching is None:
            self._watching = asyncio.ensure_future(print_stalls(self._actor))
        try:
            found: Sequence[Message] = await self._actor.messages.remote()
            return found
        except RayTaskError as error:
            raise cause_of(error) from None
        except RayError as error:  # also of a node that is lost with what it has returned
            self.close()
            reason = str(error).splitlines()[-1]
            if isinstance(error, RayActorError) and error.actor_init_failed:
                if "ImportError" in reason or "ModuleNotFoundError" in reason:
                    raise not_importable(reason) from error
                raise MetropolisError(f"a worker on Ray cannot begin ({reason})") from error
            raise WorkerLostError(f"a worker on Ray is gone ({reason})") from error

    def close(self) -> None:
        """See Link."""
        if self._watching is not None:
            self._watching.cancel()
        with suppress(ValueError):  # the cluster is gone
            ray.kill(self._actor)
