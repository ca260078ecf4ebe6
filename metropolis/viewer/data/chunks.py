"""The form of chunks, the pieces in which data reach the page; docs/viewer.md describes them."""

from __future__ import annotations

import json
from typing import Any

from metropolis.types import MetropolisError

CHUNK_ROWS = 65_536
"""About the number of agent-steps of a chunk, and the number of calls of one."""


class NoChunkError(MetropolisError):
    """There is no such chunk."""


def chunk_steps(agents: int) -> int:
    """The number of steps of a chunk."""
    return max(1, CHUNK_ROWS // agents)


def count_of(rows: int, rows_per_chunk: int) -> int:
    """The number of chunks of `rows`."""
    return -(-rows // rows_per_chunk)


def check_number(number: int, count: int, what: str) -> None:
    """Raise NoChunkError unless there is a chunk `number` of the `count` chunks of `what`."""
    if not 0 <= number < count:
        raise NoChunkError(f"there are {count} chunks of {what}, and no chunk {number}")


def json_bytes(value: Any) -> bytes:
    """JSON that any text survives, lone surrogates included."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")
