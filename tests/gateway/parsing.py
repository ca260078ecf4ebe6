"""Requests parsed as by a gateway whose policy does not preempt."""

from __future__ import annotations

from collections.abc import Mapping

from metropolis.gateway.request_parsing import ClientRequest, Resuming, from_http


def read(headers: Mapping[str, str], body: bytes, path: str = "/") -> ClientRequest:
    return from_http(path, headers, body, "", Resuming(preempts=False, is_known=False))
