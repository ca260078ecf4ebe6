"""The description of a run for its workers, wherever they run; the rest is in the store."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from metropolis.llm.client import Client
from metropolis.store.base import Store
from metropolis.types import Step
from metropolis.workers.claim_worker import ClaimingWorker
from metropolis.workers.invocations import Invocations
from metropolis.workers.leases import retry
from metropolis.workers.local import LocalWorker
from metropolis.workers.response_cache import StoredAnswers
from metropolis.world.base import Agent, World


@dataclass(frozen=True)
class WorkerSpec:
    """The static part of a run.

    `began_s` is the Unix time at which the run's clock was 0, and `lease_s` the seconds of silence
    after which a worker counts as dead. `stall_s` is Watchdog's.
    """

    world: World
    agents: list[Agent]
    client: Client
    seed: int
    began_s: float
    one_by_one: bool
    keep_text: bool
    lease_s: float
    invocations: Invocations
    stall_s: float

    def worker(
        self, name: str, store: Store, buyer: str = "", until: Step | None = None
    ) -> ClaimingWorker:
        """Create a worker; `name` is unique. The worker owns the agents.

        A client shipped to this process buys in the name of `buyer`, whose earlier workers may have
        spent some of its budget.
        """
        answers = self.client.journal
        if not isinstance(answers, StoredAnswers):
            answers = self.client.journal = StoredAnswers(store, answers, buyer)
            self.client.charge(one for one in retry(store.bought) if one.buyer == buyer)
        local = LocalWorker(
            self.world,
            self.agents,
            self.client,
            self.seed,
            clock=self._now_s,
            keep_text=self.keep_text,
            one_by_one=self.one_by_one,
            invocations=self.invocations,
        )
        own = self.world, self.agents, local, answers, self.lease_s
        return ClaimingWorker(name, store, *own, until)

    def shipped(self, share: int) -> WorkerSpec:
        """A copy for one of `share` other processes; raises as `Client.for_worker`."""
        return replace(self, client=self.client.for_worker(share))

    def _now_s(self) -> float:
        return time.time() - self.began_s
