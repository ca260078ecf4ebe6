"""The interface of cache reuse: this file is its specification.

A policy orders requests, a dispatcher places them on an instance, and reuse says which cache a
prefill starts from. It is asked once for each placed request, with what the caches hold at that
moment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from metropolis.policy.base import QueuedRequest
from metropolis.reuse.plan import Band, transitions


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Sizes of what a model keeps of a token."""

    layers: int
    kv_bytes_per_token: int
    """Keys and values of all layers."""
    input_bytes_per_token: int
    """The input (E) of one layer."""

    def reused_bytes_per_token(self, recompute: Sequence[Band]) -> int:
        """What a receiver takes of a token that computes these bands itself (DroidSpeak §5.4).

        KV of the layers that are not recomputed, and E at each transition.
        """
        reused_layers = self.layers - sum(map(len, recompute))
        kv_bytes = self.kv_bytes_per_token * reused_layers // self.layers
        return kv_bytes + self.input_bytes_per_token * len(transitions(recompute))


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """Leading tokens of a request's prompt that a cache holds."""

    model: str
    tokens: int
    instance: int
    input_layers: frozenset[int] = frozenset()
    """The layers whose inputs (E) it holds beside the KV of all layers."""
    link_bytes_per_s: float | None = None
    """Bandwidth from its instance to the request's; None: unknown."""


@dataclass(frozen=True, slots=True)
class PlacedRequest:
    """A request and the instance where it will run; None where something is unknown."""

    request: QueuedRequest
    instance: int
    prefill_s: float | None = None
    """Duration of a prefill of its whole prompt, without any cache."""
    shape: CacheShape | None = None

    def own_tokens(self, caches: Sequence[CachedPrefix]) -> int:
        """Leading tokens that the request's instance holds of its own model."""
        own = (each for each in caches if each.instance == self.instance)
        return max((each.tokens for each in own if each.model == self.request.model), default=0)


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a prefill starts from: the KV of `cache` but for the recomputed layers."""

    cache: CachedPrefix
    tokens: int
    """Leading tokens that are reused, at least one; the prompt has more."""
    recompute: tuple[Band, ...] = ()
    """The layers that the request's model computes for these tokens."""
    prefill_share: float = 0.0
    """Share of these tokens' prefill that is left, from 0 to 1."""

    def moved_bytes(self, placed: PlacedRequest, own_tokens: int) -> int:
        """Bytes that are copied between instances, for the tokens after `own_tokens`.

        0 if the cache is on the request's instance. `placed.shape` must be known.
        """
        assert placed.shape is not None
        if self.cache.instance == placed.instance:
            return 0
        per_token = placed.shape.reused_bytes_per_token(self.recompute)
        return per_token * max(0, self.tokens - own_tokens)


class CacheReuse(ABC):
    """Chooses what a prefill starts from. Methods are called from one thread.

    An instance always reuses its own cache of the request's own model, unless `own_prefix` is
    False. What `choose` returns holds for the tokens after those. Caches that were themselves
    filled from another model's cache are not offered.
    """

    kind: ClassVar[str] = "reuse"
    """The noun for such a plug-in in messages."""
    own_prefix = True
    """Whether an instance reuses its own KV of earlier requests for the same model."""

    @abstractmethod
    def choose(self, placed: PlacedRequest, caches: Sequence[CachedPrefix]) -> Reuse | None:
        """What the prefill of `placed` starts from; None: the instance's own cache alone.

        A function of its arguments.
        """

    def input_layers(self, model: str) -> frozenset[int]:  # noqa: ARG002 -- optional
        """The layers whose inputs (E) are kept beside the KV of `model`, as others need them."""
        return frozenset()

    def receivers(self) -> frozenset[str]:
        """The models that may start from another model's cache; theirs are offered to none."""
        return frozenset()

    def check_models(self, shapes: Mapping[str, CacheShape]) -> None:  # noqa: B027 -- optional
        """Raise MetropolisError if this plug-in cannot serve the models; `shapes` are by name.

        Called once, before the first request.
        """
