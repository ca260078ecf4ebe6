r"""Reuse of one's own: this file, and its name in pyproject.toml.

    pip install ./examples/own_reuse
    metropolis replay traces/alderbrook-11-13h.parquet \
        --instance base=llama-3-8b/a100 --instance chat=llama-3-8b/a100 \
        --model base --model iterative_convo=chat \
        --reuse first-layers:sender=base,receiver=chat,layers=8

Without an installation: `--reuse examples/own_reuse/own_reuse.py:FirstLayers:sender=base,…`.
"""

from collections.abc import Sequence

from metropolis.reuse.base import CachedPrefix, CacheReuse, PlacedRequest, Reuse
from metropolis.reuse.plan import Band
from metropolis.types import MetropolisError


class FirstLayers(CacheReuse):
    """The receiver computes the first `layers` layers and takes the others' KV from the sender.

    A band that starts at layer 0 starts from the receiver's own embeddings: no layer inputs (E) are
    kept or moved.
    """

    def __init__(
        self, sender: str = "base", receiver: str = "chat", layers: int = 8, of: int = 32
    ) -> None:
        if not 0 < layers < of:
            raise MetropolisError(f"layers is {layers}; it should be from 1 to {of - 1}")
        self._sender, self._receiver = sender, receiver
        self._recompute, self._share = (Band(0, layers - 1),), layers / of

    def choose(self, placed: PlacedRequest, caches: Sequence[CachedPrefix]) -> Reuse | None:
        """The sender's longest cache, if it is longer than the receiver's own."""
        request = placed.request
        if request.model != self._receiver:
            return None
        theirs = [each for each in caches if each.model == self._sender]
        longest = max(theirs, key=lambda each: each.tokens, default=None)
        if longest is None:
            return None
        tokens = min(longest.tokens, request.prompt_tokens - 1)
        if tokens <= placed.own_tokens(caches):
            return None
        return Reuse(longest, tokens, self._recompute, self._share)

    def receivers(self) -> frozenset[str]:
        """The receiver's cache, which is made from another, is offered to no model."""
        return frozenset({self._receiver})
