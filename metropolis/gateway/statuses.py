"""HTTP statuses of errors, in answers and in metrics."""

from __future__ import annotations

import asyncio

from metropolis.gateway.errors import EngineLostError
from metropolis.gateway.models import UnknownModelError
from metropolis.gateway.responses import UnknownResponseError
from metropolis.gateway.scheduler_driver import QueueFullError
from metropolis.llm.base import UnreachableError
from metropolis.policy.faults import PluginError, RequestRefusedError
from metropolis.types import MetropolisError

CLIENT_CLOSED, TOO_MANY_REQUESTS, BAD_GATEWAY, INTERNAL_ERROR = 499, 429, 502, 500
_STATUSES = (
    ((asyncio.CancelledError, ConnectionError, GeneratorExit), CLIENT_CLOSED),
    ((EngineLostError, UnreachableError), BAD_GATEWAY),
    (QueueFullError, TOO_MANY_REQUESTS),
    (RequestRefusedError, 400),
    (PluginError, INTERNAL_ERROR),
    ((UnknownModelError, UnknownResponseError), 404),
    (MetropolisError, 400),
    (BaseException, INTERNAL_ERROR),
)


def status_of(error: BaseException) -> int:
    """The status of a request that ends with `error`; 499 appears in metrics only."""
    return next(status for kind, status in _STATUSES if isinstance(error, kind))
