"""The limits of instances, and the commands of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from metropolis.policy.base import QueuedRequest
from metropolis.types import MetropolisError


@dataclass(frozen=True, slots=True)
class InstanceLimits:
    """The maximum load of an instance."""

    requests: float = inf
    """Maximum number of running requests."""
    kv_tokens: float = inf
    """Maximum number of tokens, prompts and outputs so far, of running requests; only preempting
    policies observe it: engines queue requests for memory in the order of their priorities."""
    always_preemptible: bool = True
    """Whether every running request can be preempted; False: `progressed` reports which cannot."""
    reprioritizes: bool = False
    """Whether requests that it has can get another priority."""


@dataclass(frozen=True, slots=True)
class Place:
    """Submit `request` to `instance` now; `priority` is its rank, or above all ranks."""

    request: QueuedRequest
    instance: int
    priority: int


@dataclass(frozen=True, slots=True)
class Preempt:
    """Interrupt the running `request`; report `interrupted` once the instance has released it."""

    request: QueuedRequest
    instance: int


@dataclass(frozen=True, slots=True)
class Reprioritize:
    """The ranks of requests on `instance` have changed: `priorities` are the new ones, by id."""

    instance: int
    priorities: dict[int, int]


@dataclass(frozen=True, slots=True)
class Reject:
    """`request` ends with `error`."""

    request: QueuedRequest
    error: MetropolisError


@dataclass(frozen=True, slots=True)
class Report:
    """Report `progressed` for `instance`, then call `schedule` again at the same time."""

    instance: int


Command = Place | Preempt | Reprioritize | Reject | Report


class InstanceDownError(MetropolisError):
    """The only instance that may serve a request does not answer."""

    def __init__(self, instance: int) -> None:
        super().__init__(f"instance {instance} does not answer")
