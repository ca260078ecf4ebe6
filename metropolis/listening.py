"""Where a server listens: its URL, or why it cannot."""

from __future__ import annotations

import os
from typing import Any

from metropolis.types import MetropolisError


def url_at(scheme: str, address: tuple[Any, ...]) -> str:
    """The URL of a server at the `address` of its socket, whose first items are host and port."""
    host, port = address[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def cannot_listen(
    host: str, port: int, error: OSError, other: str = "--host or --port"
) -> MetropolisError:
    """The error of a server that cannot listen there; `other` is what its user may change.

    asyncio replaces the system's messages by its own. Numbers of errors of name resolution are
    negative, and an error for several addresses has neither number nor message.
    """
    number = error.errno or 0
    reason = os.strerror(number) if number > 0 else error.strerror or error
    if host.startswith("["):
        reason = "an IPv6 address has no brackets here"
    return MetropolisError(f"cannot listen at {host}:{port}: {reason}; choose another {other}")
