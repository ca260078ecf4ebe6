"""Calls to reuse plug-ins: what they return is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from metropolis.names import cut
from metropolis.policy.faults import PluginError, call, read
from metropolis.reuse.base import CachedPrefix, CacheReuse, CacheShape, PlacedRequest, Reuse
from metropolis.reuse.plan import Band, check_bands, transitions
from metropolis.types import MetropolisError


def chosen_by(
    reuse: CacheReuse, placed: PlacedRequest, caches: Sequence[CachedPrefix]
) -> Reuse | None:
    """What `reuse` chooses for `placed`, or None.

    Raises PluginError if it fails, chooses what no cache holds, or leaves nothing to compute.
    """
    chosen = call(CacheReuse.choose, reuse, placed, caches)
    if chosen is not None and (fault := _fault(chosen, placed, caches)):
        raise PluginError(reuse, "choose", fault)
    return chosen


def input_layers_of(reuse: CacheReuse, model: str, layers: float = inf) -> frozenset[int]:
    """The plug-in's `input_layers` of a model with this number of `layers`.

    Raises PluginError if it fails or returns no set of them.
    """
    found = call(CacheReuse.input_layers, reuse, model)
    if isinstance(found, frozenset) and all(type(n) is int and 0 <= n < layers for n in found):
        return found
    which = "layers from 0" if layers == inf else f"layers from 0 to below {layers}"
    fault = f"returned the input_layers {cut(found, 200)}; it should be a frozenset of {which}"
    raise PluginError(reuse, "input_layers", fault)


def own_prefix_of(reuse: CacheReuse) -> bool:
    """The plug-in's `own_prefix`; raises PluginError if it fails or is not a bool."""
    own_prefix = read(reuse, "own_prefix")
    if type(own_prefix) is bool:
        return own_prefix
    raise PluginError(
        reuse, "own_prefix", f"has the own_prefix {own_prefix!r}; it should be a bool"
    )


def check_models(reuse: CacheReuse, shapes: Mapping[str, CacheShape]) -> None:
    """Let the plug-in check the models; raises its MetropolisError, and PluginError if it fails."""
    try:
        call(CacheReuse.check_models, reuse, shapes)
    except PluginError as error:
        if isinstance(error.__cause__, MetropolisError):
            raise error.__cause__ from None
        raise


def receivers_of(reuse: CacheReuse) -> frozenset[str]:
    """The plug-in's `receivers`; raises PluginError if it fails or returns no set of names."""
    names = call(CacheReuse.receivers, reuse)
    if isinstance(names, frozenset) and all(isinstance(each, str) for each in names):
        return names
    fault = f"returned the receivers {names!r}; it should be a frozenset of names"
    raise PluginError(reuse, "receivers", fault)


def _fault(chosen: Reuse, placed: PlacedRequest, caches: Sequence[CachedPrefix]) -> str:
    """What is wrong with `chosen`; empty if nothing is."""
    if not isinstance(chosen, Reuse):
        return f"chose {chosen!r}; it should be a Reuse or None"
    if chosen.cache not in caches:
        return "chose a cache that it was not offered"
    most = min(chosen.cache.tokens, placed.request.prompt_tokens - 1)
    if not (type(chosen.tokens) is int and 0 < chosen.tokens <= most):
        return f"chose to reuse {chosen.tokens!r} tokens; it should be from 1 to {most}"
    share, bands = chosen.prefill_share, chosen.recompute
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        return f"returned the prefill_share {share!r}; it should be from 0 to 1"
    if not isinstance(bands, tuple) or not all(map(_is_band, bands)):
        return f"chose the bands {bands!r}; it should be a tuple of Band(first, last)"
    if missing := transitions(chosen.recompute) - chosen.cache.input_layers:
        return f"recomputes from layer {min(missing)}, whose inputs the cache does not hold"
    layers = placed.shape.layers if placed.shape else max(chosen.recompute, default=(0, 0))[1] + 1
    try:
        check_bands(chosen.recompute, layers, "chose bands")
    except MetropolisError as error:
        return f"{error}"
    return ""


def _is_band(band: object) -> bool:
    return isinstance(band, Band) and all(type(layer) is int for layer in band)
