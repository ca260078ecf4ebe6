"""Reuse without loss: nothing, equal models, and adapters whose base KV is exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metropolis.reuse.base import CachedPrefix, CacheReuse, CacheShape, PlacedRequest, Reuse
from metropolis.types import MetropolisError


class NoReuse(CacheReuse):
    """Every prefill computes its whole prompt."""

    own_prefix = False

    def choose(self, placed: PlacedRequest, caches: Sequence[CachedPrefix]) -> Reuse | None:  # noqa: ARG002
        """See CacheReuse."""
        return None


class PrefixReuse(CacheReuse):
    """The KV of the same model: of the instance, and with `remote` also of other instances.

    KV of another instance is copied if that is expected to take less time than computing it.
    """

    def __init__(self, remote: bool = False) -> None:
        self._remote = remote

    def choose(self, placed: PlacedRequest, caches: Sequence[CachedPrefix]) -> Reuse | None:
        """See CacheReuse."""
        if not self._remote:
            return None
        same = [each for each in caches if each.model == placed.request.model]
        return best_copy(placed, same, caches, placed.request.prompt_tokens - 1)


class ExactReuse(CacheReuse):
    """Adapters that change no token before their invocation (activated LoRA), and their base.

    `receivers` are the adapters, separated by slashes; the KV of `sender`, their base model, is
    exact for each of them, but for the last `own_tokens` tokens of a prompt, where the adapter is
    active. Raises MetropolisError when a model is not named or `own_tokens` is negative.
    """

    def __init__(
        self, sender: str = "", receivers: tuple[str, ...] = ("",), own_tokens: int = 0
    ) -> None:
        if not sender or not all(receivers):
            raise MetropolisError("name the base and its adapters: sender=BASE,receivers=A/B")
        if sender in receivers:
            raise MetropolisError(f"{sender!r} is both sender and receiver; they must differ")
        if own_tokens < 0:
            raise MetropolisError(f"own_tokens is {own_tokens}; it should be at least 0")
        self._sender, self._receivers = sender, frozenset(receivers)
        self._own_tokens = own_tokens

    def choose(self, placed: PlacedRequest, caches: Sequence[CachedPrefix]) -> Reuse | None:
        """See CacheReuse."""
        request = placed.request
        if request.model not in self._receivers:
            return None
        base = [each for each in caches if each.model == self._sender]
        limit = request.prompt_tokens - max(1, self._own_tokens)
        return best_copy(placed, base, caches, limit)

    def receivers(self) -> frozenset[str]:
        """See CacheReuse."""
        return self._receivers

    def check_models(self, shapes: Mapping[str, CacheShape]) -> None:
        """See CacheReuse."""
        if self._sender not in shapes or not self._receivers & shapes.keys():
            raise MetropolisError(
                f"sender={self._sender} and receivers={'/'.join(sorted(self._receivers))} are for "
                f"other models than {', '.join(shapes)}"
            )


def best_copy(
    placed: PlacedRequest,
    candidates: Sequence[CachedPrefix],
    caches: Sequence[CachedPrefix],
    limit: int,
) -> Reuse | None:
    """The longest of the candidates, cut to `limit` tokens, with all its KV; None if none pays.

    A cache on the request's instance goes before others of the same length.
    """
    own = placed.own_tokens(caches)
    found = [Reuse(each, min(each.tokens, limit)) for each in candidates if each.tokens > 0]
    found = [each for each in found if each.tokens > own and pays(placed, each, own)]
    return min(found, key=lambda each: preference(placed, each, own), default=None)


def preference(placed: PlacedRequest, reuse: Reuse, own_tokens: int) -> tuple[float, bool, int]:
    """Sort key: the most work saved, then the request's instance, then the smallest number."""
    saved = (reuse.tokens - own_tokens) * (1 - reuse.prefill_share)
    return -saved, reuse.cache.instance != placed.instance, reuse.cache.instance


def pays(placed: PlacedRequest, reuse: Reuse, own_tokens: int) -> bool:
    """Whether the copy takes less time than the prefill that it saves, as far as both are known.

    The copy is taken to begin at once, and the prefill after it.
    """
    link_bytes_per_s = reuse.cache.link_bytes_per_s
    if placed.prefill_s is None or placed.shape is None or link_bytes_per_s is None:
        return True
    share = (reuse.tokens - own_tokens) / placed.request.prompt_tokens
    saved_s = placed.prefill_s * share * (1 - reuse.prefill_share)
    return reuse.moved_bytes(placed, own_tokens) / link_bytes_per_s < saved_s
