"""The interface of dispatchers: this file is its specification."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from metropolis.policy.base import Execution, QueuedRequest


@dataclass(frozen=True, slots=True)
class Fleet:
    """The engines, which are all alike."""

    instances: int
    capacity_tokens: int
    """KV cache of one."""
    tokens_per_s: float
    """How fast one answer grows in a full batch, as profiled."""


class Dispatcher(ABC):
    """Places requests on the engines of a fleet; called as policies are.

    `fleet` is another when a real engine has told the size of its KV cache.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.closed: set[int] = set()
        """Instances that take nothing now, lost or at their bound: whoever calls keeps the set."""

    @abstractmethod
    def place(self, request: QueuedRequest, now_s: float) -> int | None:
        """The instance that takes `request` now; None: it waits, and so do all behind it.

        Never one that is closed.
        """

    def completed(self, execution: Execution) -> None:  # noqa: B027 -- not all care
        """A request has been answered."""

    def cancelled(self, request: QueuedRequest, instance: int, now_s: float) -> None:  # noqa: B027 -- not all care
        """`request`, placed on `instance`, has left it unanswered; it may be placed anew."""

    def program_ended(self, program: str) -> None:  # noqa: B027 -- not all care
        """Nothing more will come of `program`."""

    def function_ended(self, function: str) -> None:  # noqa: B027 -- not all care
        """No request for `function` has come for long: forget what is known of it."""

    def lost(self, instance: int) -> None:  # noqa: B027 -- not all care
        """`instance` answers no more; it is closed, and has an empty cache if it comes back.

        The requests there leave it one by one, before or after.
        """

    def preempted(self, instance: int, now_s: float) -> None:  # noqa: B027 -- not all care
        """`instance` has run out of memory and put a request back."""
