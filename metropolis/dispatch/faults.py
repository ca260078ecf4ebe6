"""Checks of dispatchers: invalid placements, and requests deferred without a reason."""

from __future__ import annotations

from operator import index

from metropolis.dispatch.base import Dispatcher
from metropolis.policy.base import QueuedRequest
from metropolis.policy.faults import PluginError, call, read


def placed_by(dispatcher: Dispatcher, request: QueuedRequest, now_s: float) -> int | None:
    """The instance on which `dispatcher` places `request`, or None.

    Raises PluginError if it fails or names an instance that is unknown or closed.
    """
    placed = call(Dispatcher.place, dispatcher, request, now_s)
    if placed is None:
        return None
    instances = len(read(dispatcher, "fleet"))
    try:
        instance = index(placed)
    except TypeError:
        instance = -1
    if not 0 <= instance < instances:
        names = f"instances are 0 to {instances - 1}" if instances > 1 else "the instance is 0"
        fault = f"placed a request on the instance {placed!r}; {names}"
    elif instance in read(dispatcher, "closed"):
        fault = f"placed a request on instance {instance}, which is closed"
    else:
        return instance
    raise PluginError(dispatcher, "place", fault)


def endless_deferral(dispatcher: Dispatcher, requests: int) -> PluginError:
    """The error of a dispatcher that defers all `requests` while no instance is busy."""
    fault = f"defers {requests} requests although no instance is busy; it must place one"
    return PluginError(dispatcher, "place", fault)
