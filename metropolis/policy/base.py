"""The interface of policies: this file is its specification.

A policy sees what is known of a request when it arrives, never how long its answer will be, and
learns from executions that are over. The same objects order the requests of simulated instances and
of real engines; times are those of whoever calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf

RANK_BITS = 62
"""A rank is an integer of so many bits, so that engines take it as a priority."""


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A request as it arrives at its stage of a program."""

    id: int
    """Unique; ties are broken by it."""
    program: str
    """Whose request it is: all with the same program belong to one task (Kairos: message id)."""
    function: str
    """What it is for (Kairos: agent name)."""
    prompt_tokens: int
    arrived_s: float
    program_arrived_s: float
    """When the program's first request arrived."""
    upstream: str | None = None
    """The function whose answer led to it; None: it begins the program."""
    step: int = 0
    """Of the simulation it belongs to."""
    stages_left: int | None = None
    """Stages of the program from here on, this one included; None: nobody has said."""
    prefix: tuple[tuple[int, int], ...] = ()
    """What its prompt begins with, as far as others may begin with it: (text, tokens), ..."""


@dataclass(frozen=True, slots=True)
class Execution:
    """A request that has been answered."""

    request: QueuedRequest
    instance: int
    started_s: float
    """When an engine took it up; what lies before is queueing. Later by the time it was put back.
    """
    completed_s: float
    output_tokens: int

    @property
    def latency_s(self) -> float:
        """Without queueing."""
        return self.completed_s - self.started_s


class Policy(ABC):
    """Orders requests; every method is called from one thread, in the order of time.

    A request's life: `arrived`, then `started` and perhaps `preempted` by turns, then `completed`.
    """

    version = 0
    """Grows whenever the rank of a request that waits already may have changed."""
    running_version = 0
    """Grows whenever the rank of a running request may have changed, but no waiting one's."""
    rank_bits = RANK_BITS
    """Ranks are below 2 ** rank_bits. With fewer than RANK_BITS it can stand behind another policy
    (`step+kairos`)."""
    preempts = False
    """Whether a running request has to make place for one that waits and ranks before it."""

    @property
    def due_s(self) -> float:
        """When ranks change by the mere passing of time: `passed` is wanted then."""
        return inf

    @abstractmethod
    def rank(self, request: QueuedRequest) -> int:
        """Smaller goes first, from 0 to below 2 ** rank_bits; ties go by arrival, then by id.

        A function of `request` and `version`; while it runs, of `running_version` as well. Raises
        MetropolisError when the request lacks what the rank depends on.
        """

    def arrived(self, request: QueuedRequest) -> None:  # noqa: B027 -- not all care
        """`request` waits from now on."""

    def started(self, request: QueuedRequest, now_s: float) -> None:  # noqa: B027 -- not all care
        """An engine has taken `request` up, perhaps again."""

    def preempted(self, request: QueuedRequest, now_s: float) -> None:  # noqa: B027
        """`request` has been put back and waits again; it keeps the tokens it has."""

    def passed(self, now_s: float) -> None:  # noqa: B027 -- not all care
        """It is `now_s`; called when `due_s` has come, and maybe at other times."""

    def completed(self, execution: Execution) -> None:  # noqa: B027 -- not all care
        """A request has been answered."""

    def cancelled(self, request: QueuedRequest) -> None:  # noqa: B027 -- not all care
        """Nobody waits for `request` any more; it has not been answered."""

    def program_ended(self, program: str) -> None:  # noqa: B027 -- not all care
        """Nothing more will come of `program`."""

    def function_ended(self, function: str) -> None:  # noqa: B027 -- not all care
        """No request for `function` has come for long: forget what is known of it."""
