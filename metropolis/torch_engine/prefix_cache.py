"""Caches of prompts by model and tokens, within a budget of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from metropolis.torch_engine.kv import KV

OUTDATED_MAX = 1000
"""Maximum number of outdated heap entries in excess of the number of nodes."""


@dataclass(eq=False, slots=True)
class _Node:
    """Tokens that follow those of `parent`; no two children begin with the same token."""

    tokens: list[int]
    kv: KV
    parent: _Node | None
    used: int
    """The number of its last use."""
    children: dict[int, _Node] = field(default_factory=dict)
    is_held: bool = True


NOTHING = KV((), ())


class PrefixCache:
    """A radix tree for each model; the least recently used leaves are evicted first.

    A sequence may still use the KV of an evicted node: its memory is freed with the last reference.
    """

    def __init__(self) -> None:
        self._roots: dict[str, _Node] = {}
        self._leaves: list[tuple[int, int, _Node]] = []
        """A heap by last use when pushed; entries of nodes that are used or gone are outdated."""
        self._uses, self._pushes = count(), count()
        self._nodes = 0
        self.bytes = 0
        """Size of all that is held."""

    def find(self, model: str, tokens: Sequence[int]) -> list[KV]:
        """The cached KV of the leading `tokens`, in consecutive parts."""
        return [node.kv.part(0, length) for node, length in self._path(model, tokens)]

    def keep(self, model: str, tokens: Sequence[int], kv: KV) -> None:
        """Hold `kv`, which is of all `tokens`; what is not held yet is copied."""
        if model not in self._roots:
            self._roots[model] = _Node([], NOTHING, None, 0)
        node, begin = self._roots[model], 0
        for node, length in self._path(model, tokens):
            begin += length
            if length < len(node.tokens):
                node = self._split(node, length)
        if begin < len(tokens):
            self._add(node, [*tokens[begin:]], kv.part(begin, len(tokens)).copy())

    def shrink(self, most_bytes: int) -> None:
        """Evict until at most `most_bytes` are held."""
        while self.bytes > most_bytes and self._leaves:
            used, _, node = heappop(self._leaves)
            if not node.is_held or node.children:
                continue
            if used != node.used:
                self._push(node)
                continue
            self._remove(node)

    def _path(self, model: str, tokens: Sequence[int]) -> list[tuple[_Node, int]]:
        """The nodes that hold leading `tokens`, and how many of each; marks them as used."""
        path: list[tuple[_Node, int]] = []
        node, begin, used = self._roots.get(model), 0, next(self._uses)
        while node is not None and begin < len(tokens):
            node = node.children.get(tokens[begin])
            if node is not None:
                length = _common(node.tokens, tokens, begin)
                node.used, begin = used, begin + length
                path.append((node, length))
                if length < len(node.tokens):
                    break
        return path

    def _split(self, node: _Node, length: int) -> _Node:
        """Give the first `length` tokens of `node` a node of their own, which is returned."""
        parent = node.parent
        assert parent is not None
        first, rest = node.kv.part(0, length), node.kv.part(length, len(node.tokens))
        self._remove(node)
        head = self._add(parent, node.tokens[:length], first.copy(), node.used)
        tail = self._add(head, node.tokens[length:], rest.copy(), node.used)
        tail.children = node.children
        for child in tail.children.values():
            child.parent = tail
        return head

    def _add(self, parent: _Node, tokens: list[int], kv: KV, used: int | None = None) -> _Node:
        node = _Node(tokens, kv, parent, next(self._uses) if used is None else used)
        parent.children[tokens[0]] = node
        self._nodes += 1
        self.bytes += kv.bytes
        self._push(node)
        return node

    def _remove(self, node: _Node) -> None:
        parent = node.parent
        assert parent is not None
        node.is_held = False
        del parent.children[node.tokens[0]]
        self._nodes -= 1
        self.bytes -= node.kv.bytes
        node.kv = NOTHING  # the heap may still have the node
        if not parent.children and parent.parent is not None:
            self._push(parent)

    def _push(self, node: _Node) -> None:
        heappush(self._leaves, (node.used, next(self._pushes), node))
        if len(self._leaves) > 2 * self._nodes + OUTDATED_MAX:
            held = {id(entry[2]): entry for entry in self._leaves if entry[2].is_held}
            self._leaves = sorted(held.values())


def _common(held: list[int], tokens: Sequence[int], begin: int) -> int:
    """How many of the tokens from `begin` are those of `held`, from its first."""
    most = min(len(held), len(tokens) - begin)
    if held[:most] == [*tokens[begin : begin + most]]:
        return most
    return next(i for i in range(most) if held[i] != tokens[begin + i])
