"""Limits of the gateway's resources for clients."""

from __future__ import annotations

from dataclasses import dataclass

BODY_RATE_MIN = 1024
"""Bytes per second: a body that arrives more slowly on average is refused."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes and times; the defaults are those of `metropolis gateway`."""

    body_bytes: int = 16 << 20
    """Maximum size of one body after decompression."""
    bodies_bytes: int = 1 << 30
    """Maximum total of bodies in memory: being received, waiting, or at an engine."""
    connections: int = 16_384
    header_s: float = 10.0
    """Timeout from the first byte of a request's head to its last."""
    idle_s: float = 75.0
    """Timeout of a connection without a request."""
    stall_s: float = 60.0
    """Timeout without a received byte of a body, or without an accepted byte of an answer."""
