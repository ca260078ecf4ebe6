"""The interface of stores: this file is its specification.

A store holds one run: the nodes and edges of its dependency graph, the versions of its world, the
minds of its agents, and the queues between them. Three parties meet there:

- the *controller*, one at a time, holds the lease. What it writes carries the lease's fence, a
  number that grows with every holder; a stale fence is refused.
- *workers* claim clusters by step, run them, and commit. A claim is a lease, too: when it has run
  out the cluster is claimed by somebody else.
- *readers* look at everything.

A commit is one atomic act: it compares the step of every member, then writes versions, nodes,
minds and the acknowledgement, or nothing. A second commit of the same (agent, step) is refused, so
a worker believed dead can do no harm. Times are the store's, so clocks may differ.

What is kept grows with the agents and with how far they are apart, not with the steps:
`Store.release` drops what nobody can ask for any more. Everything is JSON.

`metropolis.store.check.check_store` tells whether an implementation keeps all this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.llm.usage import Purchases
from metropolis.store.async_store import Link
from metropolis.store.claim import NOWHERE, Claim, Lookahead
from metropolis.store.outcome import NO_ANSWERS, Outcome, PaidAnswers
from metropolis.types import AgentId, Dispatch, MetropolisError, Position, Step
from metropolis.world.entities import Entity, Event
from metropolis.world.parts import Changes


class StoreError(MetropolisError):
    """The store refuses, or cannot be used."""


class StoreUnavailableError(StoreError):
    """The store does not answer now; the same call may succeed later, and does no harm twice."""


class FencedOutError(StoreError):
    """Another controller has taken the run over; this one must stop."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a run is, from its beginning to its end."""

    world: str
    seed: int
    agents: tuple[str, ...]
    """The agents' names; an agent's id is its place here."""
    first_step: Step
    last_step: Step
    """The floor at which the run has come to its end."""
    metric: str
    radius: float | None
    """How far anybody reads or writes: the larger of perception radius and velocity; None: all."""
    graph: tuple[tuple[int, ...], ...] | None = None
    """The neighbours of every node, where the metric is hops."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """All else that a worker or a later reader needs."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Where every agent stands, by id, and the last acknowledgement that this includes."""

    last_id: str
    steps: Sequence[Step]
    positions: Sequence[Position]


@dataclass(frozen=True, slots=True)
class Queued:
    """A dispatched cluster; `worker` and `left_s`, what is left of its lease, if it is claimed."""

    step: Step
    agents: tuple[AgentId, ...]
    worker: str | None = None
    left_s: float | None = None


@dataclass(frozen=True, slots=True)
class Inspection:
    """A run as it stands in its store, for people."""

    info: RunInfo
    floor: Step
    """As the controller has told last."""
    released: Step
    """What lies below this step is dropped."""
    steps: Sequence[Step]
    """Of every agent, by id."""
    blocked_by: Mapping[AgentId, AgentId]
    """As the controller has told last; at an agent of the same step, one waits with it."""
    ready: Sequence[Queued]
    claimed: Sequence[Queued]
    acknowledgements: int
    """How many are kept."""
    memory_bytes: int
    holder: str | None
    """Who holds the controller's lease, or held it last."""
    lease_left_s: float
    """0: the lease has run out or was given back."""
    counts: Mapping[str, int]
    """Of clusters: dispatched, ahead (those of them that the commit of the step before dispatched),
    claims, expired, given_back, commits, refused; and agent_steps and answers."""
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
        """A new run, with what `info.first_step` sees and perceives, and every agent's mind.

        Raises StoreError when the run exists.
        """

    @abstractmethod
    def info(self) -> RunInfo:
        """Raises StoreError when there is no such run."""

    # --- the controller

    @abstractmethod
    def take_lease(self, holder: str, ttl_s: float) -> int:
        """The fence of a new lease; raises StoreError while somebody else's has not run out."""

    @abstractmethod
    def renew_lease(self, fence: int, ttl_s: float) -> None:
        """Hold the lease for `ttl_s` from now on."""

    @abstractmethod
    def release_lease(self, fence: int) -> None:
        """Let others take the lease at once; `fence` is stale from now on."""

    @abstractmethod
    def dispatch(
        self,
        fence: int,
        clusters: Sequence[Dispatch],
        edges: Mapping[AgentId, AgentId | None],
        floor: Step,
        ahead: Mapping[AgentId, Lookahead] = NOWHERE,
    ) -> None:
        """Let `clusters` be claimed; `edges` tells who is blocked by whom now, None: by nobody.

        The steps of `ahead` need not be dispatched: each is by the commit of the one before. What
        was told counts on: less is not taken back.

        Clusters that are dispatched or committed already are left alone. A cluster takes its
        members out of any other that they were dispatched in before, so the last controller counts;
        nobody is in two of `clusters`.
        Raises ValueError, and changes nothing, when some members are at the cluster's step and
        others are not.
        """

    @abstractmethod
    def acknowledgements(self, after: str, wait_s: float, most: int = 1000) -> list[Acknowledged]:
        """The commits after the one with the id `after` ("0": all that are kept), in their order.

        Waits up to `wait_s` for the first. Raises StoreError when the store does not know of
        `after`: it was restarted and has lost its newest commits.
        """

    @abstractmethod
    def nodes(self) -> Nodes:
        """Where everybody stands."""

    @abstractmethod
    def world(self, step: Step) -> tuple[list[Entity], list[Event]]:
        """All that `step` sees and perceives, as `State.at` does; exact from the released step up
        to the smallest step of any agent.
        """

    @abstractmethod
    def release(self, fence: int, below: Step) -> None:
        """Drop acknowledgements, versions and events that only steps below `below` need."""

    @abstractmethod
    def keep_minds(self, fence: int, step: Step) -> bool:
        """Keep every agent's mind as it is when it comes to `step`, for a checkpoint.

        False, and nothing is kept, when somebody has come there already. What was kept before is
        dropped.
        """

    @abstractmethod
    def kept_minds(self) -> dict[AgentId, Any]:
        """The minds kept so far, for the step that `keep_minds` named."""

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
        """The ready clusters of the lowest steps; none when there are none within `wait_s`.

        Among equals those whose first member this worker ran last come first; with `affinity` even
        if others are so many steps lower; with `own` no clusters come whose first member another
        worker ran last. `worker` is unique to a process and claims one call after the other. Claims
        whose lease has run out are ready again, and nobody's.
        """

    def claim(
        self, worker: str, lease_s: float, wait_s: float = 0.0, affinity: Step = 0
    ) -> Claim | None:
        """One of `claims`."""
        found = self.claims(worker, lease_s, wait_s, affinity)
        return found[0] if found else None

    @abstractmethod
    def minds(self, agents: Iterable[AgentId]) -> dict[AgentId, Any]:
        """The minds of `agents` as they were committed last."""

    @abstractmethod
    def extend(self, claim: Claim, lease_s: float) -> bool:
        """Hold the claim for `lease_s` from now on; False when it is lost."""

    @abstractmethod
    def give_back(self, claim: Claim) -> None:
        """Let the cluster be claimed by others at once; nothing happens when the claim is lost."""

    @abstractmethod
    def keep_answer(self, key: Key, completion: Completion, buyer: str = "") -> None:
        """Keep an answer until its agent's step is committed, so that nobody pays for it twice.

        It is among the purchases of `buyer`, a word, for good, and even if the step is committed;
        until then once, however often it is sent because a reply was lost.
        """

    @abstractmethod
    def commit(
        self,
        claim: Claim,
        outcome: Outcome,
        minds: Mapping[AgentId, Changes],
        answers: PaidAnswers = NO_ANSWERS,
        buyer: str = "",
        lease_s: float | None = None,
    ) -> Claim | bool:
        """All that the cluster did, or nothing; `minds`: what has changed in those of all members.

        Where the lookahead of an agent reaches beyond it, the next step is dispatched. With
        `lease_s` the worker has claimed that, too, and goes on at `claim.following`.
        `answers` were bought by `buyer` for this step and are kept nowhere yet: they are counted.
        When lookahead reaches further by now than `claim` knows, such a worker is given that step's
        claim; it is the same, but for its slice and how far it goes.
        False when the cluster has been committed by others, claimed by others, or taken out of
        the queue. True again, for a commit whose reply was lost, until a member is claimed anew.
        A claim that has run out still counts as long as nobody else has claimed the cluster.
        """

    # --- from an event loop

    def link(self) -> Link:
        """The same store for coroutines."""
        return Link(self)

    # --- readers

    @abstractmethod
    def bought(self) -> list[Purchases]:
        """What was bought, by buyer and function; what two have bought counts twice."""

    @abstractmethod
    def inspect(self) -> Inspection:
        """How the run stands."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A commit; ids grow, and are for `Store.acknowledgements` only."""

    id: str
    outcome: Outcome
    continues: bool
    """Whether the commit has dispatched its agent's next step."""


class Server(ABC):
    """Where the stores of many runs live; `with` closes it."""

    @abstractmethod
    def store(self, run: str) -> Store:
        """The store of the run of that name, whether it has begun or not."""

    @abstractmethod
    def runs(self) -> list[str]:
        """The names of the runs, in order."""

    @abstractmethod
    def remove(self, run: str) -> None:
        """Drop all of a run; raises StoreError when there is none, or a controller holds it."""

    @abstractmethod
    def close(self) -> None:
        """End the connections; nothing may be asked afterwards."""

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def reach_of(radius: float, velocity: float) -> float | None:
    """The radius of a RunInfo."""
    reach = max(radius, velocity)
    return None if reach == inf else reach
