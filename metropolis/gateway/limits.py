"""What clients may take of the gateway."""

from __future__ import annotations

from dataclasses import dataclass

BODY_RATE_MIN = 1024
"""Bytes per second: a body that comes more slowly on average is refused."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes and times; the defaults are those of `metropolis gateway`."""

    body_bytes: int = 16 << 20
    """Of one body, unpacked."""
    bodies_bytes: int = 1 << 30
    """Of all bodies in memory: those that are being received, wait, or are at an engine."""
    connections: int = 16_384
    header_s: float = 10.0
    """From the first byte of a request's head to its last."""
    idle_s: float = 75.0
    """Without a request."""
    stall_s: float = 60.0
    """Without a byte of a body, or with no byte of an answer taken."""
