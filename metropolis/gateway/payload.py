"""Bodies of requests: as received from a client, or as fields from this process.

The gateway's only change to a body is to add fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

EMPTY = re.compile(rb"\s*\{\s*\}\s*")
"""An object without members."""

Payload = bytes | Mapping[str, Any]
"""A JSON object, encoded or not."""


def with_fields(body: Payload, fields: Mapping[str, Any]) -> Payload:
    """Add `fields` to `body`, where they override earlier ones."""
    if not isinstance(body, bytes):
        return {**body, **fields}
    return b"".join(encoded(body, fields)) if fields else body


def encoded(body: Payload, fields: Mapping[str, Any]) -> tuple[bytes | memoryview, ...]:
    """Encode `body` with `fields`, in parts: a large body is copied once, when it is written."""
    if not isinstance(body, bytes):
        return (msgspec.json.encode({**body, **fields}),)
    if not fields:
        return (body,)
    comma = b"" if EMPTY.fullmatch(body) else b","
    return memoryview(body.rstrip())[:-1], comma, msgspec.json.encode(fields)[1:]
