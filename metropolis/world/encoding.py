"""Entities and events as JSON, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from metropolis.names import cut
from metropolis.types import MetropolisError, Step
from metropolis.world.entities import Entity, Event, thaw

UNENCODABLE = TypeError, ValueError, OverflowError, RecursionError
"""What an encoder raises for a value that JSON cannot represent."""


def entity_to_json(entity: Entity) -> dict[str, Any]:
    """An entity as JSON, without its name."""
    return {"kind": entity.kind, "at": entity.position, "state": thaw(entity.state)}


def entity_from_json(name: str, content: Mapping[str, Any]) -> Entity:
    """The inverse of `entity_to_json`."""
    return Entity(name, tuple(content["at"]), content["kind"], content["state"])


def event_to_json(event: Event) -> dict[str, Any]:
    """An event as JSON."""
    return {
        "step": event.step,
        "source": event.source,
        "kind": event.kind,
        "at": event.position,
        "data": thaw(event.data),
    }


def event_from_json(content: Mapping[str, Any]) -> Event:
    """The inverse of `event_to_json`."""
    return Event(
        content["step"], content["source"], tuple(content["at"]), content["kind"], content["data"]
    )


def first_unencodable(
    values: Mapping[str, Any], encode: Callable[[Any], object]
) -> tuple[str, Exception] | None:
    """The name of the first of `values` that `encode` cannot represent, and the error."""
    for name, value in values.items():
        try:
            encode(value)
        except UNENCODABLE as error:
            return name, error
    return None


def check_actions(step: Step, actions: Mapping[str, Any]) -> None:
    """Raise MetropolisError if JSON cannot represent the action of one of the agents."""
    encode = msgspec.json.Encoder(enc_hook=plain, order="sorted").encode
    if (found := first_unencodable(actions, encode)) is not None:
        name, error = found
        raise MetropolisError(
            f"step {step}, agent {name!r}: its action {cut(actions[name])} cannot be kept as JSON "
            f"({error}); actions are numbers, texts, arrays, lists, and mappings of texts to these"
        ) from error


def plain(value: Any) -> Any:
    """Like `plain_array`, and convert mappings."""
    return dict(value) if isinstance(value, Mapping) else plain_array(value)


def plain_array(value: Any) -> Any:
    """Convert an array or a number of NumPy; for msgspec's `enc_hook`."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not plain data")
