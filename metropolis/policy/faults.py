"""Calls to policies and dispatchers: faults become one sentence that names the plug-in."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from metropolis.policy.base import Policy, QueuedRequest
from metropolis.types import MetropolisError
from metropolis.world.mistakes import sentence_of

P = ParamSpec("P")
T = TypeVar("T")
MAY_REFUSE = ("arrived", "rank")
"""Methods whose MetropolisError is a message for the client."""


class PluginError(MetropolisError):
    """`method` of the policy or dispatcher `plugin` violates its interface."""

    def __init__(self, plugin: object, method: str, fault: str) -> None:
        kind = "policy" if isinstance(plugin, Policy) else "dispatcher"
        name = type(plugin).__name__
        self.method = f"{name}.{method}"
        super().__init__(f"the {kind} {name} {fault}")


class RequestRefusedError(PluginError):
    """The policy refused a request that lacks a field it ranks by (see MAY_REFUSE)."""


def call(method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `method` of a policy or dispatcher; raises PluginError if it fails."""
    try:
        return method(*args, **kwargs)
    except PluginError:  # from a policy inside `plugin`
        raise
    except (Exception, SystemExit) as error:
        raise _failed(getattr(method, "__self__", method), method.__name__, error) from error


def due_s_of(policy: Policy) -> float:
    """The policy's `due_s`; raises PluginError if it fails or is not a number."""
    try:
        due_s = policy.due_s
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(policy, "due_s", error) from error
    if isinstance(due_s, int | float) and due_s == due_s:
        return due_s
    raise PluginError(policy, "due_s", f"returned the due_s {due_s!r}; it should be a number")


def rank_of(policy: Policy, request: QueuedRequest) -> int:
    """The policy's rank for `request`; raises PluginError if it fails or is not a rank."""
    rank = call(policy.rank, request)
    if type(rank) is int and 0 <= rank < 1 << policy.rank_bits:
        return rank
    bits = policy.rank_bits
    fault = f"returned the rank {rank!r}; a rank is an int from 0 to below 2 ** {bits}"
    raise PluginError(policy, "rank", fault)


def raise_fault(error: PluginError) -> None:
    """Raise `error`."""
    raise error


def _failed(plugin: object, method: str, error: BaseException) -> PluginError:
    if isinstance(error, MetropolisError) and method in MAY_REFUSE:
        return RequestRefusedError(plugin, method, f"refused a request in {method}: {error}")
    return PluginError(plugin, method, f"failed in {method}: {sentence_of(error, plugin)}")
