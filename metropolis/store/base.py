"""The store interface: this file is its specification.

A store holds one run: the nodes and edges of its dependency graph, the versions of its world, the
minds of its agents, and the queues between them. It has three kinds of clients:

- the *controller*: one at a time holds the lease. Its writes carry the fence of the lease, a number
  that grows with every holder; a stale fence is refused.
- *workers* claim clusters by step, run them, and commit. A claim expires, like a lease.
- *readers* read everything.

A commit is atomic: it compares the step of every member, then writes versions, nodes, minds and the
acknowledgement, or nothing. A second commit of the same (agent, step) is refused, so a worker
presumed dead does no harm. All times are the store's, so clocks may differ.

The stored data grows with the number of agents and their spread in steps, not with the number of
steps: `Store.collect` drops what no client can request. Stores outside this process keep JSON.
`metropolis.store.check.check_store` checks whether an implementation conforms.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from metropolis.daemon_threads import DaemonThreads
from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.llm.usage import Purchases
from metropolis.store.claim import NO_LOOKAHEAD, Claim, Lookahead
from metropolis.store.execution import NO_ANSWERS, Execution, PaidAnswers
from metropolis.types import AgentId, Dispatch, MetropolisError, Position, Step
from metropolis.world.entities import Entity, Event


class StoreError(MetropolisError):
    """The store refuses the call, or is unusable."""


class StoreUnavailableError(StoreError):
    """The store does not respond; the same call may succeed later, and a repeated call is safe."""


class FencedOutError(StoreError):
    """Another controller has taken over the run; this one must stop."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The static description of a run."""

    world: str
    seed: int
    agents: tuple[str, ...]
    """The agents' names; an agent's id is its index here."""
    first_step: Step
    last_step: Step
    """The floor at which the run ends; see `Store.set_last_step`."""
    metric: str
    radius: float | None
    """Reach of reads and writes: the larger of perception radius and velocity; None: unbounded."""
    graph: tuple[tuple[int, ...], ...] | None = None
    """The neighbours of every node, if the metric is hops."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Everything else that a worker or a later reader needs."""
    retractable: bool = False
    """Whether commits can be retracted: the store then keeps what that needs until the floor, and
    acknowledgements contain what was read. A late commit of an expired claim is then refused."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The step and position of every agent, by id."""

    last_id: str
    """The last acknowledgement that they include."""
    steps: Sequence[Step]
    positions: Sequence[Position]
    released: Step
    """Data that only steps below this one need is dropped."""


@dataclass(frozen=True, slots=True, order=True)  # by step and agents, which no two share
class Queued:
    """A dispatched cluster; if claimed, its `worker`, and `left_s` until the lease expires."""

    step: Step
    agents: tuple[AgentId, ...]
    worker: str | None = None
    left_s: float | None = None


@dataclass(frozen=True, slots=True)
class Inspection:
    """A human-readable snapshot of a run in its store."""

    info: RunInfo
    floor: Step
    """The floor that the controller last reported."""
    released: Step
    steps: Sequence[Step]
    """The step of every agent, by id."""
    blocked_by: Mapping[AgentId, AgentId]
    """Agent -> the agent that it waits for, as last reported; one at its own step waits with it."""
    ready: Sequence[Queued]
    claimed: Sequence[Queued]
    acknowledgements: int
    """Number of stored acknowledgements."""
    memory_bytes: int
    holder: str | None
    """The holder of the controller's lease; None: it has expired or was given back."""
    lease_left_s: float
    """Seconds until the controller's lease expires; 0 if there is no holder."""
    counts: Mapping[str, int]
    """Numbers of clusters: dispatched, ahead (those dispatched by the commit of the step before),
    claims, expired, given_back, commits, refused, retracted; also agent_steps and answers."""
    warnings: Sequence[str]


class Store(ABC):
    """One run; all methods may be called from any thread."""

    # --- the run

    @abstractmethod
    def begin(
        self,
        info: RunInfo,
        entities: Iterable[Entity],
        minds: Mapping[AgentId, Any],
        events: Iterable[Event] = (),
    ) -> None:
        """Begin a new run with all that `info.first_step` sees. Raises StoreError if it exists."""

    @abstractmethod
    def info(self) -> RunInfo:
        """Raises StoreError if the run does not exist."""

    # --- the controller

    @abstractmethod
    def take_lease(self, holder: str, ttl_s: float) -> int:
        """Return the fence of a new lease; raises StoreError while another holder's is valid."""

    @abstractmethod
    def renew_lease(self, fence: int, ttl_s: float) -> None:
        """Extend the lease to `ttl_s` from now."""

    @abstractmethod
    def release_lease(self, fence: int) -> None:
        """Let others take the lease at once; `fence` becomes stale."""

    @abstractmethod
    def set_last_step(self, fence: int, last_step: Step) -> None:
        """Change `last_step` of the run's info: a resumed run may end elsewhere."""

    @abstractmethod
    def dispatch(
        self,
        fence: int,
        clusters: Sequence[Dispatch],
        edges: Mapping[AgentId, AgentId | None],
        floor: Step,
        ahead: Mapping[AgentId, Lookahead] = NO_LOOKAHEAD,
    ) -> None:
        """Queue `clusters`; `edges` maps an agent to the one that blocks it now, or None.

        The steps below an agent's `ahead.until` need no dispatch: each commit dispatches the next
        one. A lookahead is binding: a shorter one does not replace it.
        Clusters that are dispatched or committed already stay as they are. A cluster removes its
        members from clusters they were dispatched in before, so the last controller wins; no agent
        is in two of `clusters`.
        Raises ValueError, and changes nothing, if only some members are at the cluster's step.
        """

    @abstractmethod
    def acknowledgements(self, after: str, wait_s: float, most: int = 1000) -> list[Acknowledged]:
        """The commits after the one with the id `after` ("0": all that are stored), in order.

        Waits up to `wait_s` for the first. Raises StoreError if `after` is unknown to the store:
        it was restarted and has lost its newest commits.
        """

    @abstractmethod
    def nodes(self) -> Nodes:
        """The step and position of every agent."""

    @abstractmethod
    def world(self, step: Step) -> tuple[list[Entity], list[Event]]:
        """All that `step` sees, as `State.at`; exact from the released to the smallest step."""

    @abstractmethod
    def collect(self, fence: int, below: Step) -> None:
        """Drop all data that only steps below `below` need."""

    @abstractmethod
    def retract(self, fence: int, agent: AgentId, step: Step) -> None:
        """Undo all commits of `agent` from `step` on.

        A commit is undone for all members of its cluster; those lose their later commits, too, and
        so on. Afterwards only answers and counts differ from a run without these commits; the
        agents' dispatched clusters are withdrawn, and claims of them are lost. Idempotent.
        Raises StoreError if the run is not retractable or `step` is collected.
        """

    @abstractmethod
    def keep_minds(self, fence: int, step: Step) -> bool:
        """Keep the mind of every agent as of its arrival at `step`, for a checkpoint.

        Returns False, and keeps nothing, if an agent has reached `step`. Drops minds kept before.
        """

    @abstractmethod
    def kept_minds(self) -> dict[AgentId, Any]:
        """The minds kept so far for the step passed to `keep_minds`."""

    # --- workers

    @abstractmethod
    def claims(
        self,
        worker: str,
        lease_s: float,
        wait_s: float = 0.0,
        affinity: Step = 0,
        *,
        most: int = 1,
        own: bool = False,
    ) -> list[Claim]:
        """The ready clusters of the lowest steps; empty if none becomes ready within `wait_s`.

        Ties go to clusters whose first member this worker ran last; `affinity` extends this to
        clusters up to that many steps higher; `own` excludes clusters whose first member another
        worker ran last. `worker` is unique to a process, which makes one call at a time. Expired
        claims are ready again and belong to no worker.
        """

    def claim(
        self, worker: str, lease_s: float, wait_s: float = 0.0, affinity: Step = 0
    ) -> Claim | None:
        """Like `claims`, for at most one cluster; None if none becomes ready."""
        found = self.claims(worker, lease_s, wait_s, affinity)
        return found[0] if found else None

    @abstractmethod
    def minds(self, agents: Iterable[AgentId]) -> dict[AgentId, Any]:
        """The minds of `agents` as of their last commit."""

    @abstractmethod
    def extend(self, claim: Claim, lease_s: float) -> bool:
        """Extend the claim to `lease_s` from now; returns False if it is lost."""

    @abstractmethod
    def give_back(self, claim: Claim) -> None:
        """Let others claim the cluster at once; a lost claim is ignored."""

    @abstractmethod
    def keep_answer(self, key: Key, completion: Completion, buyer: str = "") -> None:
        """Keep an answer until its step is collected, so that it is paid for only once.

        It is added permanently to the purchases of `buyer`, a word, even if its step is collected;
        before that only once, however often it is resent after a lost reply.
        """

    @abstractmethod
    def commit(
        self,
        claim: Claim,
        execution: Execution,
        answers: PaidAnswers = NO_ANSWERS,
        buyer: str = "",
        lease_s: float | None = None,
    ) -> Claim | bool:
        """Commit all that the cluster did, or nothing.

        If an agent's lookahead reaches beyond this step, the next step is dispatched. With
        `lease_s` the worker has claimed it, too, and continues at `claim.following`.
        `answers` were bought by `buyer` for this step and are not stored yet: they are counted,
        and kept if the run is retractable.
        If the lookahead now reaches further than `claim` knows, such a worker gets the claim of
        that step, which differs in its snapshot and its `until` only.
        Returns False if another worker has committed or claimed the cluster, or it was removed from
        the queue. Repeated after a lost reply: True, until a member is claimed again.
        An expired claim is valid until another worker claims the cluster.
        """

    @abstractmethod
    def answers(self, steps: Iterable[Step]) -> dict[Key, Completion]:
        """The answers kept for `steps`, of all agents."""

    # --- event loop

    def async_store(self) -> AsyncStore:
        """A view of this store for coroutines."""
        return AsyncStore(self)

    # --- readers

    @abstractmethod
    def bought(self) -> list[Purchases]:
        """All purchases, by buyer and function; what two buyers bought counts twice."""

    @abstractmethod
    def inspect(self) -> Inspection:
        """The current state of the run."""


class Acknowledged(msgspec.Struct, frozen=True, gc=False):
    """A commit; ids grow, and serve `Store.acknowledgements` only."""

    id: str
    execution: Execution
    continues: bool
    """Whether the commit dispatched its agent's next step."""


class AsyncStore:
    """The frequent calls of workers and controllers, for coroutines of one event loop.

    See Store. These run in threads; a store with native async access overrides them.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._threads = store, DaemonThreads("store")

    async def claims(
        self, worker: str, lease_s: float, wait_s: float, *, most: int, own: bool
    ) -> list[Claim]:
        """See Store."""
        call = partial(self._store.claims, worker, lease_s, wait_s, most=most, own=own)
        return await self._threads.run(call)

    async def keep_answer(self, key: Key, completion: Completion, buyer: str) -> None:
        """See Store."""
        await asyncio.to_thread(self._store.keep_answer, key, completion, buyer)

    async def commit(
        self,
        claim: Claim,
        execution: Execution,
        answers: PaidAnswers = NO_ANSWERS,
        buyer: str = "",
        lease_s: float | None = None,
    ) -> Claim | bool:
        """See Store."""
        arguments = claim, execution, answers, buyer, lease_s
        return await asyncio.to_thread(self._store.commit, *arguments)

    async def acknowledgements(self, after: str, wait_s: float) -> list[Acknowledged]:
        """See Store."""
        return await self._threads.run(partial(self._store.acknowledgements, after, wait_s))

    async def dispatch(
        self,
        fence: int,
        clusters: Sequence[Dispatch],
        edges: Mapping[AgentId, AgentId | None],
        floor: Step,
        ahead: Mapping[AgentId, Lookahead] = NO_LOOKAHEAD,
    ) -> None:
        """See Store."""
        await asyncio.to_thread(self._store.dispatch, fence, clusters, edges, floor, ahead)

    def interrupt(self) -> None:
        """End waits of this object now and later, if they can be ended; from any thread."""

    async def close(self) -> None:
        """Close the connections; the next call reopens them."""
        self._threads.shutdown()


class Server(ABC):
    """Holds the stores of many runs; a context manager that closes it."""

    @abstractmethod
    def store(self, run: str) -> Store:
        """The store of the run `run`, whether or not it has begun."""

    @abstractmethod
    def runs(self) -> list[str]:
        """The names of the runs, in order."""

    @abstractmethod
    def remove(self, run: str) -> None:
        """Drop all data of a run; raises StoreError if there is none, or a controller holds it."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections; no calls are allowed afterwards."""

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
