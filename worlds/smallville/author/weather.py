"""The weather of a day, the same for everybody; it is known from the date alone."""

from __future__ import annotations

from datetime import date
from zlib import crc32

KINDS = ("frost", "snow", "fog", "rain", "wind", "sun", "thaw")
INDOORS = ("rain", "snow", "wind")
"""Weather in which nobody sits outside without need."""


def weather(day: date) -> str:
    """One of `KINDS`."""
    return KINDS[crc32(f"weather of {day}".encode()) % len(KINDS)]
