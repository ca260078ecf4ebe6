"""Calls to reuse plug-ins: what they return is checked."""

from __future__ import annotations

from collections.abc import Sequence

from metropolis.policy.faults import PluginError, call
from metropolis.reuse.base import CachedPrefix, CacheReuse, PlacedRequest, Reuse
from metropolis.reuse.plan import check_bands, transitions
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


def input_layers_of(reuse: CacheReuse, model: str) -> frozenset[int]:
    """The plug-in's `input_layers`; raises PluginError if it fails or returns no set of layers."""
    layers = call(CacheReuse.input_layers, reuse, model)
    if isinstance(layers, frozenset) and all(type(each) is int and each >= 0 for each in layers):
        return layers
    fault = f"returned the input_layers {layers!r}; it should be a frozenset of layers from 0"
    raise PluginError(reuse, "input_layers", fault)


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
    if not 0 <= chosen.prefill_share <= 1:
        return f"returned the prefill_share {chosen.prefill_share!r}; it should be from 0 to 1"
    if missing := transitions(chosen.recompute) - chosen.cache.input_layers:
        return f"recomputes from layer {min(missing)}, whose inputs the cache does not hold"
    layers = placed.shape.layers if placed.shape else max(chosen.recompute, default=(0, 0))[1] + 1
    try:
        check_bands(chosen.recompute, layers, "chose bands")
    except MetropolisError as error:
        return f"{error}"
    return ""
