"""Where most of a prompt's beginning is in the cache already, unless that instance is overloaded.

After Preble, as Agentix §6.4 has it: one tree of the prefixes of all instances; a long match goes
where it is longest, a short one to the least used.
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
    """A stretch of a text, after those that lead to it."""

    above: _Node | None = None
    text: int = 0
    tokens: int = 0
    below: dict[int, dict[int, _Node]] = field(default_factory=dict)
    """By text and tokens."""
    holders: set[int] = field(default_factory=set)
    """Instances that have it; and then all above it."""


class PrefixAffinity(LeastLoaded):
    """A match of `share` of the prompt is long; an instance is overloaded when it is at more than
    `skew` times the requests of the least used one, one added to both.

    What an instance has is what it was sent, least recently used first forgotten when that exceeds
    its memory. Raises MetropolisError when an option is out of its range.
    """

    def __init__(self, fleet: Fleet, share: float = 0.5, skew: float = 2.0) -> None:
        super().__init__(fleet)
        if not 0 < share <= 1:
            raise MetropolisError(f"share is {share}; it should be above 0, at most 1")
        if not skew >= 1:
            raise MetropolisError(f"skew is {skew}; it should be at least 1")
        self._share, self._skew = share, skew
        self._root = _Node()
        self._held: list[OrderedDict[_Node, None]] = [OrderedDict() for _ in range(fleet.instances)]
        """What each instance has, the least recently used first."""
        self._held_tokens = [0] * fleet.instances

    def place(self, request: QueuedRequest, now_s: float) -> int | None:
        """See Dispatcher."""
        placed = super().place(request, now_s)
        if placed is None:
            return None
        local = self._most_local(request)
        # `placed` was the least used, and is already at `request`
        if local is not None and self._at_work[local] + 1 <= self._skew * self._at_work[placed]:
            self._at_work[placed] -= 1
            self._at_work[local] += 1
            placed = local
        self._keep(request, placed)
        return placed

    def lost(self, instance: int) -> None:
        """See Dispatcher."""
        while self._held[instance]:
            self._forget(self._held[instance].popitem(last=False)[0], instance)

    def matched_tokens(self, request: QueuedRequest) -> list[int]:
        """How much of its prompt each instance has."""
        found, before, node = [0] * self.fleet.instances, 0, self._root
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
        """The open instance of the longest match, if it is long."""
        matched = self.matched_tokens(request)
        open_ones = [one for one in range(self.fleet.instances) if one not in self.closed]
        best = max(open_ones, key=lambda one: (matched[one], -self._at_work[one]))
        return best if matched[best] >= self._share * request.prompt_tokens else None

    def _keep(self, request: QueuedRequest, instance: int) -> None:
        """`instance` will have the prompt's prefix; what does not fit any more is forgotten."""
        node = self._root
        path = []
        for text, tokens in request.prefix:
            same = node.below.setdefault(text, {})
            if tokens not in same:
                same[tokens] = _Node(node, text, tokens)
            node = same[tokens]
            path.append(node)
        held = self._held[instance]
        for node in reversed(path):  # whoever is above is used later, and so forgotten later
            if instance not in node.holders:
                node.holders.add(instance)
                self._held_tokens[instance] += node.tokens
            held[node] = None
            held.move_to_end(node)
        while self._held_tokens[instance] > self.fleet.capacity_tokens:
            self._forget(held.popitem(last=False)[0], instance)

    def _forget(self, node: _Node, instance: int) -> None:
        node.holders.discard(instance)
        self._held_tokens[instance] -= node.tokens
        if not node.holders and node.above is not None:
            same = node.above.below[node.text]
            del same[node.tokens]
            if not same:
                del node.above.below[node.text]
