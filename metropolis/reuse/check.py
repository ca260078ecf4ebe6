"""The conformance suite for reuse, for authors of plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from metropolis.dispatch.check import made_by
from metropolis.policy.base import QueuedRequest
from metropolis.policy.faults import read
from metropolis.reuse.base import CachedPrefix, CacheReuse, CacheShape, PlacedRequest
from metropolis.reuse.faults import chosen_by, input_layers_of, receivers_of
from metropolis.types import MetropolisError

REQUESTS = 500
INSTANCES = 4


class BrokenReuseError(MetropolisError):
    """A reuse plug-in that violates its interface."""


def check_reuse(
    make: Callable[[], CacheReuse],
    models: Sequence[str] = ("base", "chat"),
    layers: int = 32,
    seed: int = 0,
) -> None:
    """Raise BrokenReuseError if the reuse that `make` returns violates the interface.

    Random requests for the `models`, which have `layers` layers, are offered random caches of them.
    Raises PluginError if a method fails or returns what is not allowed, and MetropolisError as
    `made_by` and if no model is named.
    """
    if not models:
        raise MetropolisError("models is empty; name the models that the reuse is for")
    reuse, twin = made_by(make, CacheReuse), made_by(make, CacheReuse)
    draw = Random(f"{seed} reuse")
    _require(type(read(reuse, "own_prefix")) is bool, "own_prefix must be a bool")
    kept = {model: input_layers_of(reuse, model) for model in models}
    _require(
        all(each < layers for one in kept.values() for each in one),
        f"input_layers must be below the {layers} layers of the models",
    )
    receivers = receivers_of(reuse)
    for number in range(REQUESTS):
        placed = _placed(draw, number, models, layers)
        caches = [_cache(draw, models, kept) for _ in range(draw.randrange(6))]
        chosen = chosen_by(reuse, placed, caches)
        same = chosen == chosen_by(reuse, placed, caches) == chosen_by(twin, placed, caches)
        _require(same, "choose must be a function of its arguments")
        if chosen is not None and chosen.cache.model != placed.request.model:
            _require(
                placed.request.model in receivers,
                "a model that starts from another model's cache must be among the receivers",
            )
            _require(chosen.cache.model not in receivers, "a receiver's cache must not be reused")


def _placed(draw: Random, number: int, models: Sequence[str], layers: int) -> PlacedRequest:
    request = QueuedRequest(
        number,
        f"program {number}",
        "function",
        draw.randint(1, 4000),
        float(number),
        float(number),
        model=draw.choice(models),
    )
    is_known = draw.random() < 0.8
    return PlacedRequest(
        request,
        draw.randrange(INSTANCES),
        draw.uniform(0.001, 10) if is_known else None,
        CacheShape(layers, 4096 * layers, 8192) if is_known else None,
    )


def _cache(draw: Random, models: Sequence[str], kept: dict[str, frozenset[int]]) -> CachedPrefix:
    model = draw.choice(models)
    inputs = kept[model] if draw.random() < 0.8 else frozenset[int]()
    tokens, link_bytes_per_s = draw.choice((16, 500, 4000)), draw.choice((None, 1e8, 25e9))
    return CachedPrefix(model, tokens, draw.randrange(INSTANCES), inputs, link_bytes_per_s)


def _require(is_kept: bool, rule: str) -> None:
    if not is_kept:
        raise BrokenReuseError(rule)
