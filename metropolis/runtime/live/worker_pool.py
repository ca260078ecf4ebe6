"""The workers of a run in a store: in this process, or on Ray."""

from __future__ import annotations

import uuid
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol

from metropolis.runtime.live.configuration import parse_workers
from metropolis.runtime.live.stored import MEMORY, StoredRun
from metropolis.store.factory import is_own_store
from metropolis.store.memory import MemoryStore
from metropolis.types import MetropolisError
from metropolis.workers.local import LocalWorker
from metropolis.workers.optimistic.decisions import Decisions, LocalDecisions
from metropolis.workers.optimistic.minds import Minds
from metropolis.workers.optimistic.remote_host import HostSpec
from metropolis.workers.shared_worker import SharedWorker
from metropolis.workers.worker_spec import WorkerSpec
from metropolis.world.saving import copies_of


class WorkerPool(Protocol):
    """A group of workers."""

    shared: bool
    """Whether it shares the store's data; it then needs no lookahead, and a release is free."""

    def start(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Coroutines that run until cancelled, and raise the errors of their clusters."""

    def close(self) -> None:
        """Release resources; call it after the coroutines have ended."""


class SharedWorkerPool:
    """One worker, which shares the store's data; see `MemoryServer`."""

    shared = True

    def __init__(self, worker: LocalWorker, store: MemoryStore) -> None:
        self._worker = SharedWorker(worker, store)

    def start(self) -> Sequence[Coroutine[Any, Any, None]]:
        """See WorkerPool."""
        return [self._worker.run()]

    def close(self) -> None:
        """See WorkerPool."""


class LocalWorkerPool:
    """Workers on one event loop, each with separate agents; the first uses the spec's."""

    shared = False

    def __init__(self, spec: WorkerSpec, stored: StoredRun, count: int) -> None:
        self._spec, self._store, self._count = spec, stored.store, count

    def start(self) -> Sequence[Coroutine[Any, Any, None]]:
        """See WorkerPool."""
        process = uuid.uuid4().hex
        others = [copies_of(self._spec.agents) for _ in range(1, self._count)]
        specs = [self._spec, *(replace(self._spec, agents=agents) for agents in others)]
        return [spec.worker(f"{process}:{n}", self._store).run() for n, spec in enumerate(specs)]

    def close(self) -> None:
        """See WorkerPool."""


def check_workers(workers: int | str, *, store: str, ray_address: str | None = None) -> None:
    """Raise MetropolisError if `workers` is invalid for a run in the store at address `store`."""
    on_ray, count = parse_workers(workers)
    if store == MEMORY and (on_ray or count != 1):
        what = "workers on Ray" if on_ray else f"{count} workers"
        raise MetropolisError(f"{what} need a store; name embedded or a redis://… URL")
    if on_ray and is_own_store(store):
        raise MetropolisError(
            f"workers on Ray do not reach the store {store}; name embedded or a redis://… URL, or "
            "a number of workers, in this process"
        )
    if ray_address is not None:
        from metropolis.workers.ray_cluster import check_address

        check_address(ray_address)


def make_worker_pool(
    workers: int | str, ray_address: str | None, spec: WorkerSpec, stored: StoredRun
) -> WorkerPool:
    """The pool that `workers` specifies. Raises MetropolisError if it is unavailable."""
    on_ray, count = parse_workers(workers)
    if not on_ray:
        return LocalWorkerPool(spec, stored, count or 1)
    assert stored.url is not None
    from metropolis.workers.ray import RayWorkerPool

    return RayWorkerPool(spec, stored.url, stored.name, count, ray_address)


def make_decisions(
    workers: int | str,
    ray_address: str | None,
    spec: WorkerSpec,
    local: LocalWorker,
    minds: Minds,
) -> Decisions:
    """Where the agents of an optimistic run decide: on Ray, or in this process, by `local`.

    Raises MetropolisError if `workers` are unavailable.
    """
    on_ray, count = parse_workers(workers)
    if not on_ray:
        return LocalDecisions(local, minds)
    from metropolis.workers.ray_decisions import RayDecisions

    return RayDecisions(HostSpec.of(spec, local), minds, count, ray_address)
