"""Prefix affinity: the instance that caches most of a prompt, unless it is overloaded.

After Preble, as described in Agentix §6.4: a request with a long match goes to the instance of the
longest one, others to the least loaded instance.
"""

from __future__ import annotations

from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.dispatch.prefix_tree import PrefixTree
from metropolis.policy.base import QueuedRequest
from metropolis.types import MetropolisError


class PrefixAffinity(LeastLoaded):
    """A match is long if it covers `share` of the prompt. An instance is overloaded if it has more
    than `skew` times the requests of the least loaded one, one added to both.

    An instance is assumed to hold what it was sent; beyond its memory the least recently used is
    evicted. Raises MetropolisError when an option is out of range.
    """

    def __init__(self, fleet: Fleet, share: float = 0.5, skew: float = 2.0) -> None:
        super().__init__(fleet)
        if not 0 < share <= 1:
            raise MetropolisError(f"share is {share}; it should be above 0, at most 1")
        if not skew >= 1:
            raise MetropolisError(f"skew is {skew}; it should be at least 1")
        self._share, self._skew = share, skew
        self._tree = PrefixTree(len(fleet))

    def place(self, request: QueuedRequest, now_s: float) -> int | None:
        """See Dispatcher."""
        placed = super().place(request, now_s)
        if placed is None:
            return None
        local = self._most_local(request)
        # `placed` was the least loaded, and its load includes `request`
        if local is not None and self._in_flight[local] + 1 <= self._skew * self._in_flight[placed]:
            self._in_flight[placed] -= 1
            self._in_flight[local] += 1
            placed = local
        self._tree.keep(request.prefix, placed, self.fleet.instances[placed].capacity_tokens)
        return placed

    def lost(self, instance: int) -> None:
        """See Dispatcher."""
        self._tree.clear(instance)

    def matched_tokens(self, request: QueuedRequest) -> list[int]:
        """The tokens of the request's prompt that each instance holds."""
        found = self._tree.matched_tokens(request.prefix)
        return [min(tokens, request.prompt_tokens) for tokens in found]

    def _most_local(self, request: QueuedRequest) -> int | None:
        """The open instance with the longest match; None if that match is short."""
        matched = self.matched_tokens(request)
        open_ones = [one for one in range(len(self.fleet)) if one not in self.closed]
        best = max(open_ones, key=lambda one: (matched[one], -self._in_flight[one]))
        return best if matched[best] >= self._share * request.prompt_tokens else None
