"""The workers of a run in a store: in this process, or on Ray."""

from __future__ import annotations

import uuid
from collections.abc import Coroutine, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from metropolis.runtime.live.configuration import counted
from metropolis.runtime.live.stored import StoredRun
from metropolis.store.memory import MemoryStore
from metropolis.types import MetropolisError
from metropolis.workers.local import LocalWorker
from metropolis.workers.shared_worker import SharedWorker
from metropolis.workers.worker_spec import Job

if TYPE_CHECKING:
    from metropolis.workers.ray import RayCrew


class Crew(Protocol):
    """A group of workers."""

    shared: bool
    """Whether it shares the store's data; it then needs no lookahead, and a release is free."""

    def start(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Coroutines that run until cancelled, and raise the errors of their clusters."""

    def close(self) -> None:
        """Release resources; call it after the coroutines have ended."""


class SharedCrew:
    """One worker, which shares the store's data; see `MemoryServer`."""

    shared = True

    def __init__(self, worker: LocalWorker, store: MemoryStore) -> None:
        self._worker = SharedWorker(worker, store)

    def start(self) -> Sequence[Coroutine[Any, Any, None]]:
        """See Crew."""
        return [self._worker.run()]

    def close(self) -> None:
        """See Crew."""


class LocalCrew:
    """Workers on one event loop, each with separate agents; the first uses the job's."""

    shared = False

    def __init__(self, job: Job, stored: StoredRun, count: int) -> None:
        self._job, self._store, self._count = job, stored.store, count

    def start(self) -> Sequence[Coroutine[Any, Any, None]]:
        """See Crew."""
        process = uuid.uuid4().hex
        others = [deepcopy(self._job.agents) for _ in range(1, self._count)]
        jobs = [self._job, *(replace(self._job, agents=agents) for agents in others)]
        return [job.worker(f"{process}:{n}", self._store).run() for n, job in enumerate(jobs)]

    def close(self) -> None:
        """See Crew."""


def check_workers(workers: int | str, *, stored: bool, ray_address: str | None = None) -> None:
    """Raise MetropolisError if `workers` is invalid for a run, `stored` or in memory."""
    on_ray, _ = counted(workers)
    if on_ray and not stored:
        raise MetropolisError("workers on Ray need a store; name embedded or a redis://… URL")
    if on_ray:
        _ray_crew().check_address(ray_address)


def crew_of(workers: int | str, ray_address: str | None, job: Job, stored: StoredRun) -> Crew:
    """The crew that `workers` specifies. Raises MetropolisError if it is unavailable."""
    on_ray, count = counted(workers)
    if not on_ray:
        return LocalCrew(job, stored, count or 1)
    assert stored.url is not None
    return _ray_crew()(job, stored.url, stored.name, count, ray_address)


def _ray_crew() -> type[RayCrew]:
    try:
        from metropolis.workers.ray import RayCrew
    except ImportError as error:
        raise MetropolisError(f"{error}; workers on Ray need metropolis[ray]") from None
    return RayCrew
