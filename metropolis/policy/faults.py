"""Calls to plug-ins (policies, dispatchers, reuse): faults become one sentence that names them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Concatenate, ParamSpec, TypeVar

from metropolis.policy.base import RANK_BITS, Policy, QueuedRequest
from metropolis.types import MetropolisError
from metropolis.world.user_errors import describe_error

P = ParamSpec("P")
T = TypeVar("T")
PluginT = TypeVar("PluginT")
MAY_REFUSE = ("arrived", "rank")
"""Methods whose MetropolisError is a message for the client."""


class PluginError(MetropolisError):
    """`method` of `plugin` violates its interface."""

    def __init__(self, plugin: object, method: str, fault: str) -> None:
        name = type(plugin).__name__
        self.method = f"{name}.{method}"
        super().__init__(f"the {getattr(type(plugin), 'kind', 'plug-in')} {name} {fault}")


class RequestRefusedError(PluginError):
    """The policy refused a request that lacks a field it ranks by (see MAY_REFUSE)."""


def call(
    method: Callable[Concatenate[PluginT, P], T],
    plugin: PluginT,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Call a method of a plug-in; raises PluginError if it cannot be read, or fails.

    `method` is the interface's, like `Policy.rank`.
    """
    try:
        result: T = getattr(plugin, method.__name__)(*args, **kwargs)
        return result
    except PluginError:  # from a policy inside `plugin`
        raise
    except (Exception, SystemExit) as error:
        raise _failed(plugin, method.__name__, error) from error


def read(plugin: object, name: str) -> Any:
    """The property `name` of a plug-in; raises PluginError if it fails."""
    try:
        return getattr(plugin, name)
    except PluginError:  # from a policy inside `plugin`
        raise
    except (Exception, SystemExit) as error:
        raise _failed(plugin, name, error) from error


def due_s_of(policy: Policy) -> float:
    """The policy's `due_s`; raises PluginError if it fails or is not a number."""
    due_s = read(policy, "due_s")
    if isinstance(due_s, int | float) and due_s == due_s:
        return due_s
    raise PluginError(policy, "due_s", f"returned the due_s {due_s!r}; it should be a number")


def next_due_s(policy: Policy, now_s: float, *, has_changed: bool) -> float:
    """The policy's `due_s` after it passed `now_s`, at least that.

    Raises as `due_s_of`, and when it is not later although nothing `has_changed` since: the policy
    would be called endlessly.
    """
    due_s = due_s_of(policy)
    if due_s <= now_s and not has_changed:
        fault = f"has the due_s {due_s:g} after it passed {now_s:g}; it should be later"
        raise PluginError(policy, "due_s", fault)
    return max(due_s, now_s)


def versions_of(policy: Policy) -> int:
    """The sum of the policy's versions, which increases with any change of a rank."""
    return version_of(policy, "version") + version_of(policy, "running_version")


def version_of(policy: Policy, name: str) -> int:
    """The policy's version `name`; raises PluginError if it fails or is not an int."""
    version = read(policy, name)
    if isinstance(version, int):
        return version
    raise PluginError(policy, name, f"returned the {name} {version!r}; it should be an int")


def reranked_by(policy: Policy, since: int) -> Collection[int] | None:
    """The policy's `reranked`; raises PluginError if it fails or returns anything else."""
    ids = call(Policy.reranked, policy, since)
    if ids is None or isinstance(ids, Collection):
        return ids
    raise PluginError(policy, "reranked", f"returned {ids!r} in reranked; it should be ids or None")


def rank_bits_of(policy: Policy) -> int:
    """The policy's `rank_bits`; raises PluginError if it fails or is no width of a rank."""
    bits = read(policy, "rank_bits")
    if type(bits) is int and 1 <= bits <= RANK_BITS:
        return bits
    fault = f"returned the rank_bits {bits!r}; they should be from 1 to {RANK_BITS}"
    raise PluginError(policy, "rank_bits", fault)


def rank_of(policy: Policy, request: QueuedRequest) -> int:
    """The policy's rank for `request`; raises PluginError if it fails or is not a rank."""
    rank, bits = call(Policy.rank, policy, request), rank_bits_of(policy)
    if type(rank) is int and 0 <= rank < 1 << bits:
        return rank
    fault = f"returned the rank {rank!r}; a rank is an int from 0 to below 2 ** {bits}"
    raise PluginError(policy, "rank", fault)


def raise_fault(error: PluginError) -> None:
    """Raise `error`."""
    raise error


def _failed(plugin: object, method: str, error: BaseException) -> PluginError:
    if isinstance(error, MetropolisError) and method in MAY_REFUSE:
        return RequestRefusedError(plugin, method, f"refused a request in {method}: {error}")
    return PluginError(plugin, method, f"failed in {method}: {describe_error(error, plugin)}")
