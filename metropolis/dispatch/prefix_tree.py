"""A tree of the prefixes that instances are assumed to hold, because they were sent them.

After Preble, as described in Agentix §6.4: one tree holds the prefixes of all instances.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

Prefix = Sequence[tuple[int, int]]
"""Segments of a prompt: text and tokens."""
BLOCK_TOKENS = 16
"""Tokens of a block of engines' caches. An instance is assumed to hold no more segments than
blocks, or `SEGMENTS_MIN`: tiny segments would take more of this tree's memory than of its own."""
SEGMENTS_MIN = 1024


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


class PrefixTree:
    """What each of the instances holds: beyond its memory the least recently used is evicted."""

    def __init__(self, instances: int) -> None:
        self._root = _Node()
        self._held: list[OrderedDict[_Node, None]] = [OrderedDict() for _ in range(instances)]
        """What each instance holds, least recently used first."""
        self._held_tokens = [0] * instances

    def matched_tokens(self, prefix: Prefix) -> list[int]:
        """The leading tokens of `prefix` that each instance holds."""
        found, before, node = [0] * len(self._held), 0, self._root
        for text, tokens in prefix:
            same = node.below.get(text, {})
            for length, child in same.items():
                for instance in child.holders:
                    found[instance] = max(found[instance], before + min(length, tokens))
            if tokens not in same:
                break
            node, before = same[tokens], before + tokens
        return found

    def keep(self, prefix: Prefix, instance: int, capacity_tokens: int) -> None:
        """Record that `instance` holds `prefix`; evict what exceeds its capacity."""
        node = self._root
        path = []
        for text, tokens in prefix:
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
        segments_max = max(SEGMENTS_MIN, capacity_tokens // BLOCK_TOKENS)
        while self._held_tokens[instance] > capacity_tokens or len(held) > segments_max:
            self._forget(held.popitem(last=False)[0], instance)

    def clear(self, instance: int) -> None:
        """`instance` has lost its memory."""
        while self._held[instance]:
            self._forget(self._held[instance].popitem(last=False)[0], instance)

    def _forget(self, node: _Node, instance: int) -> None:
        node.holders.discard(instance)
        self._held_tokens[instance] -= node.tokens
        if not node.holders and node.above is not None:
            same = node.above.below[node.text]
            del same[node.tokens]
            if not same:
                del node.above.below[node.text]
