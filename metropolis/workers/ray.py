"""Workers on Ray: long-lived actors that claim clusters directly from the store.

Ray places the actors, restarts dead ones, and ships the static part of the run once; no cluster
passes through it. The claims of a dead actor expire, and other actors run them again. A cluster
during which many actors die ends the run: its agents probably end their process.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import uuid
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from metropolis.names import shortened
from metropolis.store.base import Store, StoreError, StoreUnavailableError
from metropolis.store.server import RedisServer
from metropolis.types import AgentId, MetropolisError, Step
from metropolis.workers.leases import retry
from metropolis.workers.module_shipping import ImportedSources, not_importable, sources_of
from metropolis.workers.optimistic.remote_messages import pickled_error
from metropolis.workers.ray_cluster import check_address, join_ray, worker_count
from metropolis.workers.ray_pickling import dumps, loads, pickled_spec, unpickled_spec
from metropolis.workers.watchdog import Watchdog, print_message
from metropolis.workers.worker_spec import WorkerSpec

STOP_S = 5.0
"""How long an actor may take to give back its open claims."""
SPREAD: dict[str, Any] = {
    "num_cpus": 0.001,  # Ray places actors that need no resource on random nodes
    "scheduling_strategy": "SPREAD",
    "concurrency_groups": {"watch": 1},  # Ray's own types lack this option
}
"""Options of watched actors, which are spread over the nodes."""
LOST_S = 1.0
"""How long Ray has to restart a dead actor before the next request to it."""
LOSSES_MAX = 5
"""A cluster during which this many actors have died ends the run. An innocent one can be hit
several times, where nodes are preempted or processes killed, but hardly this often."""


class RayWorkerPool:
    """Actors in the cluster at `address`, or in one on this machine that ends with the run.

    The number of actors is `count`, by default the number of CPUs.
    """

    check_address = staticmethod(check_address)

    shared = False

    def __init__(
        self, spec: WorkerSpec, url: str, run: str, count: int | None, address: str | None
    ) -> None:
        """`url` is the store's, as reachable from the actors. Raises MetropolisError."""
        self._leave_cluster = join_ray(count, address)
        self._spec, self._url, self._run = spec, url, run
        self._count = worker_count(count)
        self._name = uuid.uuid4().hex

    def start(self) -> Sequence[Coroutine[Any, Any, None]]:
        """See WorkerPool."""
        pickled, modules = pickled_spec(self._spec.shipped(self._count))
        self._shared = ray.put(pickled)
        remote = ray.remote(max_restarts=-1, **SPREAD)(_Actor)
        actors = [remote.remote() for _ in range(self._count)]
        arguments = [self._shared], sources_of(modules), self._url, self._run
        losses = Losses(self._url, self._run)
        return [
            run_actor(actor, losses, *arguments, f"{self._name}:{n}")
            for n, actor in enumerate(actors)
        ]

    def close(self) -> None:
        """Add the actors' purchases to the client's; end the cluster if it was started here."""
        with suppress(StoreError), RedisServer(self._url) as server:  # gone with the store
            for bought in server.store(self._run).bought():
                if bought.buyer.startswith(self._name):
                    self._spec.client.add_usage(bought)
        self._leave_cluster()


class WatchedActor:
    """An actor whose watchdog reports agents that hang."""

    def __init__(self) -> None:
        self.stalls: SimpleQueue[str] = SimpleQueue()
        """The messages of the watchdog."""

    # In a separate thread, so that agents cannot block it.
    @ray.method(concurrency_group="watch")
    async def stall(self) -> str:
        """The next message of the watchdog."""
        return await asyncio.to_thread(self.stalls.get)


class _Actor(WatchedActor):
    async def run(
        self,
        shared: list[Any],
        sources: Mapping[str, tuple[str, str]],
        url: str,
        run: str,
        buyer: str,
        worker: str,
    ) -> bytes | None:
        """Run until cancelled, as `worker`; return the error that has ended it, pickled.

        Ray itself fails with errors that cannot be pickled or have no text.
        """
        sys.meta_path.insert(0, ImportedSources(sources))
        try:
            spec: WorkerSpec = unpickled_spec(await shared[0])
            with await asyncio.to_thread(retry, RedisServer, url) as server:
                await self._work(spec, server.store(run), buyer, worker)
        except Exception as error:  # noqa: BLE001 -- raised in the driver
            return pickled_error(error, dumps, loads)
        return None

    async def _work(self, spec: WorkerSpec, store: Store, buyer: str, name: str) -> None:
        worker = spec.worker(name, store, buyer)
        # Otherwise collections scan all that Ray imports, for 65 ms within the first second.
        gc.collect()
        gc.freeze()
        loop = asyncio.get_running_loop()
        try:
            with Watchdog(spec.invocations, loop, spec.stall_s, self.stalls.put):
                await worker.run()
        finally:
            await spec.client.close()


class Losses:
    """The clusters of a run that workers were running when their processes ended."""

    def __init__(self, url: str, run: str) -> None:
        self._url, self._run = url, run
        self._counts: Counter[tuple[Step, tuple[AgentId, ...]]] = Counter()

    def add(self, worker: str) -> None:
        """Count a loss of `worker`; raises MetropolisError for a cluster with LOSSES_MAX losses."""
        with suppress(StoreError), RedisServer(self._url) as server:  # the driver finds it gone
            about = server.store(self._run).inspect()
            held = [(one.step, one.agents) for one in about.claimed if one.worker == worker]
            self._counts.update(held)
            often = [cluster for cluster in held if self._counts[cluster] >= LOSSES_MAX]
            if often:
                names = about.info.agents
                # a worker may run several steps of an agent before it commits the first
                lost = [f"{names[one]!r} from step {step} on" for step, of in often for one in of]
                raise MetropolisError(
                    f"{LOSSES_MAX} workers on Ray ended while they ran {shortened(lost, 5)}; "
                    "an agent may have ended its process, or used too much memory"
                )


async def run_actor(actor: Any, losses: Losses, *arguments: Any) -> None:
    """Run the actor until cancelled; Ray restarts it if its process has died.

    If the actor cannot reach the store, retry: the driver detects whether the store is gone.
    """
    watching = asyncio.ensure_future(print_stalls(actor))
    try:
        while True:
            worker = uuid.uuid4().hex
            task = actor.run.remote(*arguments, worker)
            try:
                error = loads(await task)
            except RayTaskError as failed:
                error = failed
            except ActorUnavailableError:
                await asyncio.to_thread(losses.add, worker)
                await asyncio.sleep(LOST_S)
                continue
            cause = cause_of(error)
            if not isinstance(cause, StoreUnavailableError):
                raise cause
    except asyncio.CancelledError:
        ray.cancel(task)
        with suppress(RayError, TimeoutError):
            async with asyncio.timeout(STOP_S):
                await task
        raise
    except RayError as error:
        if isinstance(error, RayActorError) and error.actor_init_failed:
            raise not_importable(str(error).splitlines()[-1]) from error
        raise MetropolisError(f"a worker on Ray is gone for good: {error}") from error
    finally:
        watching.cancel()
        ray.kill(actor)


async def print_stalls(actor: Any) -> None:
    """Print the messages of the actor's watchdog, until cancelled."""
    while True:
        try:
            print_message(await actor.stall.remote())
        except RayError:
            await asyncio.sleep(LOST_S)


def cause_of(error: BaseException) -> BaseException:
    """The exception behind `error`, of an actor."""
    if isinstance(error, RayTaskError) and error.cause is not None:
        error = error.cause
    return not_importable(error) if isinstance(error, ImportError) else error
