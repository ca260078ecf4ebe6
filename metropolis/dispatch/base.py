"""The interface of dispatchers: this file is its specification."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from metropolis.policy.base import QueuedRequest, ServedRequest


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """The properties of one instance."""

    capacity_tokens: int
    """Size of its KV cache."""
    tokens_per_s: float
    """Decode speed of one request in a usual busy batch, as profiled."""
    models: tuple[str, ...] = ()
    """The models that it serves; empty: every model."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The instances, which may differ."""

    instances: tuple[InstanceSpec, ...]

    @classmethod
    def uniform(cls, count: int, capacity_tokens: int, tokens_per_s: float) -> Fleet:
        """A fleet of `count` equal instances that serve every model."""
        return cls((InstanceSpec(capacity_tokens, tokens_per_s),) * count)

    def __len__(self) -> int:
        return len(self.instances)


class Dispatcher(ABC):
    """Places requests on the instances of a fleet. Methods are called as those of Policy: from one
    thread, in the order of time.

    `fleet` is replaced when a real engine reports the size of its KV cache, or its models.
    """

    kind: ClassVar[str] = "dispatcher"
    """The noun for such a plug-in in messages."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.closed: set[int] = set()
        """Instances that accept nothing now: lost, or at their bound; maintained by the caller."""

    @abstractmethod
    def place(self, request: QueuedRequest, now_s: float) -> int | None:
        """The instance that `request` is sent to, which must not be closed.

        None: the request waits, and with it all requests behind it.
        """

    def completed(self, served: ServedRequest) -> None:  # noqa: B027 -- optional
        """A request has completed."""

    def cancelled(self, request: QueuedRequest, instance: int, now_s: float) -> None:  # noqa: B027 -- optional
        """`request` left `instance` without completing; it may be placed again."""

    def program_ended(self, program: str) -> None:  # noqa: B027 -- optional
        """`program` will send no more requests."""

    def function_ended(self, function: str) -> None:  # noqa: B027 -- optional
        """`function` has been unused for long: drop its state."""

    def lost(self, instance: int) -> None:  # noqa: B027 -- optional
        """`instance` has failed: it is closed, and its cache is empty if it returns.

        Its requests are cancelled one by one, before or after this call.
        """

    def preempted(self, instance: int, now_s: float) -> None:  # noqa: B027 -- optional
        """`instance` ran out of memory and preempted a request."""
