"""Forwards a stream to the client, and ends it with an error when its engine is lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence

from aiohttp import web

from metropolis.gateway.response_builder import error_body
from metropolis.gateway.routes import MESSAGES, RESPONSES
from metropolis.gateway.statuses import status_of
from metropolis.types import MetropolisError


async def stream(
    request: web.Request,
    status: int,
    headers: Sequence[tuple[str, str]],
    pieces: AsyncIterator[bytes],
) -> web.StreamResponse:
    """Forward `pieces`; a broken stream gets an error event and no regular end.

    Raises the error that broke it: its engine was lost, or its rest cannot be placed.
    """
    response = web.StreamResponse(status=status, headers=headers)
    try:
        await response.prepare(request)
        async for piece in pieces:
            await response.write(piece)
        await response.write_eof()
    except MetropolisError as error:
        await response.write(error_event(request.path, str(error), status_of(error)))
        assert request.transport is not None
        request.transport.close()
        raise
    return response


def error_event(path: str, sentence: str, status: int) -> bytes:
    """Return the error event that ends a stream, in the format of its route."""
    if path == MESSAGES:
        error = {"type": "api_error", "message": sentence}
        return _written({"type": "error", "error": error}, b"event: error\n")
    if path == RESPONSES:
        event = {"type": "error", "code": "server_error", "message": sentence, "param": None}
        return _written(event, b"event: error\n")
    return _written(error_body(status, sentence), b"")


def _written(event: Mapping[str, object], name: bytes) -> bytes:
    return name + b"data: " + json.dumps(event).encode() + b"\n\n"
