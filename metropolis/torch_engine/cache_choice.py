"""What a request's prefill starts from, of the caches that the engine holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import msgspec

from metropolis.policy.base import QueuedRequest
from metropolis.reuse.base import CachedPrefix, CacheReuse, CacheShape, PlacedRequest
from metropolis.reuse.faults import (
    check_models,
    chosen_by,
    input_layers_of,
    own_prefix_of,
    receivers_of,
)
from metropolis.reuse.plan import Band, check_bands, transitions
from metropolis.torch_engine.kv import KV, tokens_in
from metropolis.torch_engine.model import Model
from metropolis.torch_engine.prefill import Start
from metropolis.torch_engine.prefix_cache import PrefixCache
from metropolis.types import MetropolisError


class ReuseOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request's order to start from the cache of the model `sender`; the gateway adds it.

    `recompute` are the bands of layers that the request's own model computes.
    """

    sender: str
    recompute: tuple[Band, ...] = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """What a prefill started from."""

    cached_tokens: int = 0
    """Leading prompt tokens from the model's own cache."""
    reused_tokens: int = 0
    """Tokens after those, from another model's cache."""
    reused_bytes: int = 0
    """Size of what was reused: KV of the layers not recomputed, and inputs (E) of the bands."""
    sender: str = ""
    """The model whose cache was reused; empty: none."""


class CacheChoice:
    """Looks up caches of `models`, and asks `reuse` about requests that order nothing.

    Raises PluginError, and MetropolisError when `reuse` does not fit the models.
    """

    def __init__(self, models: Mapping[str, Model], reuse: CacheReuse) -> None:
        self._reuse, self._cache = reuse, PrefixCache()
        self._shapes = {
            name: CacheShape(
                model.shape.layers, model.kv_bytes_per_token, model.input_bytes_per_token
            )
            for name, model in models.items()
        }
        check_models(reuse, self._shapes)
        self.input_layers = {
            name: input_layers_of(reuse, name, model.shape.layers) for name, model in models.items()
        }
        """The layers whose inputs (E) are kept, by model."""
        self.receivers = receivers_of(reuse)
        """The models that may start from another's cache."""
        self._own_prefix = own_prefix_of(reuse)

    @property
    def bytes(self) -> int:
        """Size of the caches."""
        return self._cache.bytes

    def shrink(self, most_bytes: int) -> None:
        """Evict until the caches have at most `most_bytes`."""
        self._cache.shrink(most_bytes)

    def keep(self, model: str, tokens: Sequence[int], kv: KV) -> None:
        """Hold the KV of all `tokens`."""
        self._cache.keep(model, tokens, kv)

    def check(self, model: str, order: ReuseOrder) -> None:
        """Raise MetropolisError if `model` cannot follow the order, whatever the caches hold.

        Only receivers of the engine's own plug-in follow orders, as others may use their KV, too.
        """
        if order.sender not in self._shapes:
            served = ", ".join(self._shapes)
            raise MetropolisError(f"reuse.sender is {order.sender!r}; this engine serves {served}")
        if model not in self.receivers or order.sender in self.receivers:
            raise MetropolisError(
                f"{model!r} does not start from the cache of {order.sender!r} here; start the "
                "engine with --reuse droidspeak:plans=…"
            )
        check_bands(order.recompute, self._shapes[order.sender].layers, "reuse.recompute")
        if missing := transitions(order.recompute) - self.input_layers[order.sender]:
            raise MetropolisError(
                f"the engine does not keep the inputs of layer {min(missing)} of {order.sender!r}, "
                "where a band of reuse.recompute begins; start it with --reuse droidspeak:plans=…"
            )

    def start(
        self,
        request: QueuedRequest,
        tokens: Sequence[int],
        order: ReuseOrder | None,
        per_token_s: float | None,
    ) -> tuple[Start, Origin]:
        """What the prefill of `tokens` starts from; at least the last token is computed.

        `per_token_s`: seconds of a full prefill, if known. Raises PluginError.
        """
        model, prompt = str(request.model), tokens[:-1]
        own = self._cache.find(model, prompt) if self._own_prefix else []
        own_tokens = tokens_in(own)
        if order is None:
            chosen = self._chosen(request, prompt, own_tokens, per_token_s)
        else:
            lent = self._with_inputs(order.sender, prompt, transitions(order.recompute))
            chosen = order.sender, tokens_in(lent), order.recompute
        if chosen is None or chosen[1] <= own_tokens:
            return Start(own), Origin(own_tokens)
        sender, end, recompute = chosen
        lent = _between(self._cache.find(sender, prompt), own_tokens, end)
        reused_tokens = end - own_tokens
        reused_bytes = reused_tokens * self._shapes[sender].reused_bytes_per_token(recompute)
        origin = Origin(own_tokens, reused_tokens, reused_bytes, sender)
        return Start(own, lent, recompute), origin

    def _chosen(
        self,
        request: QueuedRequest,
        prompt: Sequence[int],
        own_tokens: int,
        per_token_s: float | None,
    ) -> tuple[str, int, tuple[Band, ...]] | None:
        """Sender, tokens and recomputed layers, as the plug-in chooses."""
        caches = [
            CachedPrefix(name, held, 0, layers)
            for name, layers in self.input_layers.items()
            if name != request.model and name not in self.receivers
            if (held := tokens_in(self._with_inputs(name, prompt, layers)))
        ]
        if not caches:
            return None
        if own_tokens:
            caches.append(CachedPrefix(str(request.model), own_tokens, 0))
        prefill_s = None if per_token_s is None else per_token_s * len(prompt)
        placed = PlacedRequest(request, 0, prefill_s, self._shapes[str(request.model)])
        reuse = chosen_by(self._reuse, placed, caches)
        if reuse is None or reuse.cache.model == request.model:
            return None
        return reuse.cache.model, reuse.tokens, reuse.recompute

    def _with_inputs(self, model: str, prompt: Sequence[int], layers: Collection[int]) -> list[KV]:
        """The cached parts of `prompt`, up to the first that lacks the inputs of a layer."""
        parts = self._cache.find(model, prompt)
        return [*takewhile(lambda part: all(layer in part.inputs for layer in layers), parts)]


def _between(parts: Sequence[KV], begin: int, end: int) -> list[KV]:
    """The tokens from `begin` to before `end` of consecutive parts."""
    found, first = [], 0
    for part in parts:
        last = first + part.tokens
        if first < end and last > begin:
            found.append(part.part(max(begin, first) - first, min(end, last) - first))
        first = last
    return found
