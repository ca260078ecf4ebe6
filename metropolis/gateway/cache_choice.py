"""The cache that a placed request starts from, of those that its engine is assumed to hold.

An engine is assumed to hold the prompts that it was sent, by model; it reports what it had.
"""

from __future__ import annotations

from typing import Any

from metropolis.dispatch.prefix_tree import PrefixTree
from metropolis.gateway.probing import Traits
from metropolis.gateway.prompt_pieces import Piece, piece_of
from metropolis.llm.placement import PREFIX
from metropolis.policy.base import QueuedRequest
from metropolis.reuse.base import CachedPrefix, CacheReuse, PlacedRequest
from metropolis.reuse.faults import chosen_by, receivers_of

CACHED, REUSED, REUSED_BYTES = (
    f"{PREFIX}{name}".lower() for name in ("Cached-Tokens", "Reused-Tokens", "Reused-Bytes")
)
"""Headers in which an engine reports tokens of the model's own cache, tokens of another model's,
and the bytes of the latter."""


class CacheChoice:
    """Asks `reuse` about the requests of `engines` engines."""

    def __init__(self, reuse: CacheReuse, engines: int) -> None:
        self._reuse, self._sent = reuse, PrefixTree(engines)
        self._models: list[set[str]] = [set() for _ in range(engines)]
        """The models for which each engine was sent requests."""
        self._receivers = receivers_of(reuse)

    def order(
        self, request: QueuedRequest, instance: int, traits: Traits, capacity_tokens: int
    ) -> dict[str, Any] | None:
        """The order to the engine of `traits`, where `request` is placed, to start from a cache.

        None: it starts from its model's own cache alone. Raises PluginError.
        """
        if request.model is None or not request.prefix:
            return None
        caches = []
        for model in sorted(self._models[instance]):
            if model != request.model and model in self._receivers:
                continue
            if tokens := self._held_tokens(model, request, instance):
                inputs = traits.kept_inputs.get(model, frozenset())
                caches.append(CachedPrefix(model, tokens, instance, inputs))
        chosen = chosen_by(self._reuse, PlacedRequest(request, instance), caches)
        self._models[instance].add(request.model)
        self._sent.keep(_of(request.model, request), instance, capacity_tokens)
        if chosen is None or chosen.cache.model == request.model:
            return None
        if request.model not in traits.receivers:
            return None
        return {"sender": chosen.cache.model, "recompute": chosen.recompute}

    def lost(self, instance: int) -> None:
        """The engine may have lost its memory."""
        self._sent.clear(instance)

    def _held_tokens(self, model: str, request: QueuedRequest, instance: int) -> int:
        held = self._sent.matched_tokens(_of(model, request))[instance]
        return min(max(0, held - 1), request.prompt_tokens)


def _of(model: str, request: QueuedRequest) -> tuple[Piece, ...]:
    """The prompt's pieces after one of one token that stands for the model."""
    return piece_of(model, 0), *request.prefix
