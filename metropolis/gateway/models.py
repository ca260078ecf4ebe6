"""Checks that all engines of a gateway serve the same models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from metropolis.gateway.engine_client import EngineClient, Reply
from metropolis.types import MetropolisError

SHOWN_MODELS = 8


class _List(msgspec.Struct):
    data: list[dict[str, Any]]


def check_alike(engines: Iterable[EngineClient]) -> None:
    """Raise MetropolisError when two of `engines` report different models."""
    telling = [engine for engine in engines if engine.models]
    if any(engine.models != telling[0].models for engine in telling[1:]):
        each = "; ".join(f"{engine.name} serves {_names(engine)}" for engine in telling)
        raise MetropolisError(
            f"the engines serve different models: {each}; use engines that serve the same models "
            "under the same names (--served-model-name sets a name)"
        )


def mismatch(engine: EngineClient, others: Iterable[EngineClient]) -> str | None:
    """Return a message if `engine` serves other models than one of the `others`, else None."""
    for other in others:
        if engine.models and other.models and engine.models != other.models:
            return (
                f"the engine at {engine.name} serves {_names(engine)}, that at {other.name} "
                f"{_names(other)}; no requests go to the first"
            )
    return None


def model_in(reply: Reply, name: str) -> bytes | None:
    """Return the model `name` from an engine's list of models; None if it is absent."""
    try:
        models = msgspec.json.decode(reply.whole or b"", type=_List).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return next((msgspec.json.encode(one) for one in models if one.get("id") == name), None)


def _names(engine: EngineClient) -> str:
    names = sorted(engine.models)
    more = f" and {len(names) - SHOWN_MODELS} more" if len(names) > SHOWN_MODELS else ""
    return ", ".join(map(repr, names[:SHOWN_MODELS])) + more
