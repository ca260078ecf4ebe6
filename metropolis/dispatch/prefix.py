"""Prefix affinity: the instance that caches most of a prompt, unless it is overloaded.

After Preble, as described in Agentix §6.4: one tree holds the prefixes of all instances. A request
with a long match goes to the instance of the longest one, others to the least loaded instance.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.policy.base import QueuedRequest
from metropolis.types import MetropolisError


@dataclass(slots=True, eq=False)
class _Node:
    """A segment of a prefix, after those of its ancestors."""

    above: _Node | None = None
    text: int = 0
    tokens: int = 0
    below: dict[int, dict[int, _Node]] = field(default_factory=dict)
    """Children by text and tokens."""
    holders: set[int] = field(default_factory=set)
    """Instances that hold it; they hold its ancestors as well."""


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
        self._root = _Node()
        self._held: list[OrderedDict[_Node, None]] = [OrderedDict() for _ in range(len(fleet))]
        """What each instance holds, least recently used first."""
        self._held_tokens = [0] * len(fleet)

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
        self._keep(request, placed)
        return placed

    def lost(self, instance: int) -> None:
        """See Dispatcher."""
        while self._held[instance]:
            self._forget(self._held[instance].popitem(last=False)[0], instance)

    def matched_tokens(self, request: QueuedRequest) -> list[int]:
        """The tokens of the request's prompt that each instance holds."""
        found, before, node = [0] * len(self.fleet), 0, self._root
        for text, tokens in request.prefix:
            same = node.below.get(text, {})
            for length, child in same.items():
                for instance in child.holders:
                    found[instance] = max(found[instance], before + min(length, tokens))
            if tokens not in same:
                break
            node, before = same[tokens], before + tokens
        return [min(tokens, request.prompt_tokens) for tokens in found]

    def _most_local(self, request: QueuedRequest) -> int | None:
        """The open instance with the longest match; None if that match is short."""
        matched = self.matched_tokens(request)
        open_ones = [one for one in range(len(self.fleet)) if one not in self.closed]
        best = max(open_ones, key=lambda one: (matched[one], -self._in_flight[one]))
        return best if matched[best] >= self._share * request.prompt_tokens else None

    def _keep(self, request: QueuedRequest, instance: int) -> None:
        """Record that `instance` holds the prompt's prefix; evict what no longer fits."""
        node = self._root
        path = []
        for text, tokens in request.prefix:
            same = node.below.setdefault(text, {})
            if tokens not in same:
                same[tokens] = _Node(node, text, tokens)
            node = same[tokens]
            path.append(node)
        held = self._held[instance]
        for node in reversed(path):  # ancestors become more recently used, and so are evicted later
            if instance not in node.holders:
                node.holders.add(instance)
                self._held_tokens[instance] += node.tokens
            held[node] = None
            held.move_to_end(node)
        while self._held_tokens[instance] > self.fleet.instances[instance].capacity_tokens:
            self._forget(held.popitem(last=False)[0], instance)

    def _forget(self, node: _Node, instance: int) -> None:
        node.holders.discard(instance)
        self._held_tokens[instance] -= node.tokens
        if not node.holders and node.above is not None:
            same = node.above.below[node.text]
            del same[node.tokens]
            if not same:
                del node.above.below[node.text]
