"""The interface of policies: this file is its specification.

A policy sees what is known of a request at its arrival, never the length of its output, and learns
from completed executions. The same objects order the requests of simulated instances and of real
engines; all times are on the caller's clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import ClassVar

RANK_BITS = 62
"""The width of a rank in bits."""
SPECULATIVE_PRIORITY = 1 << RANK_BITS
"""Added to the ranks of speculative requests; engines accept the sum as a priority."""


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A request at its arrival: one stage of a program."""

    id: int
    """A unique number; breaks ties."""
    program: str
    """The task that the request belongs to (Kairos: message id)."""
    function: str
    """The purpose of the request (Kairos: agent name)."""
    prompt_tokens: int
    arrived_s: float
    program_arrived_s: float
    """Arrival of the program's first request."""
    upstream: str | None = None
    """The function whose answer triggered this request; None: it is the program's first."""
    step: int = 0
    """The simulation step that the request belongs to."""
    stages_left: int | None = None
    """Remaining stages of the program, this one included; None: unknown."""
    prefix: tuple[tuple[int, int], ...] = ()
    """The part of the prompt that other requests may share: segments (text, tokens)."""
    model: str | None = None
    """The model that must serve it; None: any."""
    speculative: bool = False
    """Whether the request may be sent in vain. Whatever its rank, it runs after all requests that
    are not speculative."""


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A completed request."""

    request: QueuedRequest
    instance: int
    started_s: float
    """The time at which it would have started if its answer had not been interrupted, in seconds on
    the clock of `request.arrived_s`: the time of its start on an engine plus the time that it spent
    preempted, by the policy or by a simulated engine that lacked memory (real engines do not report
    that). So the request waited for `started_s - request.arrived_s`, and was served for
    `completed_s - started_s`."""
    completed_s: float
    output_tokens: int
    first_token_s: float | None = None
    """The time at which the first token was computed; None: unknown."""

    @property
    def latency_s(self) -> float:
        """Time on the engine, without queueing."""
        return self.completed_s - self.started_s


class Policy(ABC):
    """Orders requests. All methods are called from one thread, in the order of time.

    Lifecycle of a request: `arrived`, `started`, any number of `preempted` and `started`, then
    `completed`. `cancelled` may end it at any point. `promoted` may come once in between.
    """

    kind: ClassVar[str] = "policy"
    """The noun for such a plug-in in messages."""
    version = 0
    """Increases whenever the rank of a waiting request may have changed."""
    running_version = 0
    """Increases whenever the rank of a running request may have changed, but of no waiting one."""
    rank_bits = RANK_BITS
    """Ranks are below 2 ** rank_bits. A policy with fewer than RANK_BITS can follow another one, as
    in `step+kairos`."""
    preempts = False
    """Whether a waiting request preempts a running one that ranks behind it."""

    @property
    def due_s(self) -> float:
        """When ranks next change by the passing of time alone; the caller then calls `passed`."""
        return inf

    @abstractmethod
    def rank(self, request: QueuedRequest) -> int:
        """The rank, in [0, 2 ** rank_bits): smaller runs first; ties go by arrival, then by id.

        Speculative requests go behind all others, in the order of their ranks.

        A function of `request` and `version`, and of `running_version` while the request runs.
        Raises MetropolisError when the request lacks a field that the rank depends on.
        """

    def reranked(self, since: int) -> Collection[int] | None:  # noqa: ARG002
        """Ids of the requests whose ranks have changed since the sum of both versions was `since`.

        None: unknown; all are then ranked again.
        """
        return None

    def arrived(self, request: QueuedRequest) -> None:  # noqa: B027 -- optional
        """`request` has arrived and waits."""

    def started(self, request: QueuedRequest, now_s: float) -> None:  # noqa: B027 -- optional
        """An engine has started or resumed `request`."""

    def preempted(self, request: QueuedRequest, now_s: float) -> None:  # noqa: B027
        """`request` has been preempted and waits again; its output so far is kept."""

    def promoted(self, request: QueuedRequest) -> None:  # noqa: B027 -- optional
        """`request` was speculative and is needed now; the caller ranks it again."""

    def passed(self, now_s: float) -> None:  # noqa: B027 -- optional
        """The time is `now_s`. Called at `due_s`, and possibly at other times."""

    def completed(self, served: ServedRequest) -> None:  # noqa: B027 -- optional
        """A request has completed."""

    def cancelled(self, request: QueuedRequest) -> None:  # noqa: B027 -- optional
        """`request` was cancelled before it completed."""

    def program_ended(self, program: str) -> None:  # noqa: B027 -- optional
        """`program` will send no more requests, and all of its requests have ended."""

    def function_ended(self, function: str) -> None:  # noqa: B027 -- optional
        """`function` has been unused for long: drop its state."""
