"""One gateway, one set of models: engines that serve others are refused, with the names."""

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
    """Raises MetropolisError when two of `engines` say that they serve different models."""
    telling = [engine for engine in engines if engine.models]
    if any(engine.models != telling[0].models for engine in telling[1:]):
        each = "; ".join(f"{engine.name} serves {_names(engine)}" for engine in telling)
        raise MetropolisError(
            f"the engines serve different models: {each}; give engines that serve the same models "
            "under the same names (--served-model-name gives a name)"
        )


def mismatch(engine: EngineClient, others: Iterable[EngineClient]) -> str | None:
    """A sentence about an `engine` that serves other models than one of the `others`."""
    for other in others:
        if engine.models and other.models and engine.models != other.models:
            return (
                f"the engine at {engine.name} serves {_names(engine)}, that at {other.name} "
                f"{_names(other)}; no requests go to the first"
            )
    return None


def model_in(reply: Reply, name: str) -> bytes | None:
    """The model of that `name` in an engine's list of its models; None if it is not there."""
    try:
        models = msgspec.json.decode(reply.whole or b"", type=_List).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return next((msgspec.json.encode(one) for one in models if one.get("id") == name), None)


def _names(engine: EngineClient) -> str:
    names = sorted(engine.models)
    more = f" and {len(names) - SHOWN_MODELS} more" if len(names) > SHOWN_MODELS else ""
    return ", ".join(map(repr, names[:SHOWN_MODELS])) + more
