"""Associative memory: a resident's events, thoughts and chats, and their retrieval.

Memories are retrieved by the sum of three scores, each scaled to 0..1 over all memories (Park et
al. 2023, §4.1): recency, 0.995 to the power of the hours since the last retrieval; importance, 1 to
10 as rated at creation; and relevance, the cosine between its embedding and the question's.

A memory that occurs again takes the place of the former one, so that none is recalled twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nlargest
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from metropolis.worlds.smallville.embedding import DIMENSIONS, Embedder

Kind = Literal["event", "thought", "chat"]
RECENCY_PER_HOUR = 0.995
_FIRST_CAPACITY = 256


@dataclass(frozen=True)
class Node:
    """One memory. Times are simulated seconds since the midnight before step 0."""

    kind: Kind
    text: str
    created_s: int
    """The time of its last occurrence."""
    importance: int
    """From 1, mundane, to 10, poignant."""
    subject: str
    predicate: str
    object: str
    evidence: tuple[int, ...] = ()
    """The numbers of the memories on which a thought is based."""


@dataclass
class Memory:
    """All nodes in order of their first occurrence; a node's number is its index in the list.

    No two nodes have the same kind and text.
    """

    nodes: list[Node] = field(default_factory=list)
    accessed_s: list[int] = field(default_factory=list)
    """The time of each node's last retrieval."""

    def __post_init__(self) -> None:
        self._known = 0
        self._vectors = np.zeros((_FIRST_CAPACITY, DIMENSIONS), np.float32)
        self._importance = np.zeros(_FIRST_CAPACITY)
        self._accessed_s = np.zeros(_FIRST_CAPACITY)
        self._by_subject: dict[str, set[int]] = {}
        self._numbers = {(node.kind, node.text): number for number, node in enumerate(self.nodes)}

    def add(self, node: Node) -> int:
        """Add a node, or replace the one of the same kind and text; returns its number."""
        number = self._numbers.setdefault((node.kind, node.text), len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
            self.accessed_s.append(node.created_s)
            return number
        if number < self._known:
            for name in _people(self.nodes[number]):
                self._by_subject[name].discard(number)
            self._index_node(number, node)
        self.nodes[number], self.accessed_s[number] = node, node.created_s
        return number

    def importance(self, kind: Kind, text: str) -> int | None:
        """The importance of the node of that kind and text; None: there is none."""
        number = self._numbers.get((kind, text))
        return None if number is None else self.nodes[number].importance

    def retrieve(self, question: str, count: int, now_s: int, embed: Embedder) -> list[Node]:
        """The `count` memories with the highest scores; updates their time of retrieval."""
        if not self.nodes:
            return []
        self._index(embed)
        chosen = np.argsort(-self.scores(question, now_s, embed), kind="stable")[:count]
        self._accessed_s[chosen] = now_s
        for number in chosen.tolist():
            self.accessed_s[number] = now_s
        return [self.nodes[number] for number in chosen.tolist()]

    def latest(self, count: int, among: int) -> list[Node]:
        """The `count` last retrieved of the newest `among` nodes, the most recent one last."""
        newest = sorted(range(len(self.nodes)), key=self._age)[-among:]
        chosen = sorted(newest, key=self.accessed_s.__getitem__)[-count:]
        return [self.nodes[number] for number in chosen]

    def scores(self, question: str, now_s: int, embed: Embedder) -> npt.NDArray[np.float64]:
        """The score of each node, 0 to 3."""
        self._index(embed)
        count = self._known
        hours = (now_s - self._accessed_s[:count]) / 3600
        # Rounded, so that a processor's order of summation does not decide ties.
        relevance = np.round(self._vectors[:count] @ embed(question), 5)
        total = _scaled(RECENCY_PER_HOUR**hours)
        total += _scaled(self._importance[:count])
        total += _scaled(relevance.astype(np.float64))
        return total

    def about(self, subject: str, count: int, embed: Embedder) -> list[Node]:
        """The newest `count` memories whose subject or object is `subject`, newest first."""
        self._index(embed)
        found = nlargest(count, self._by_subject.get(subject, ()), key=self._age)
        return [self.nodes[number] for number in found]

    def _age(self, number: int) -> tuple[int, int]:
        """A key by which nodes are sorted from the oldest to the newest."""
        return self.nodes[number].created_s, number

    def last_chat(self, partner: str, embed: Embedder) -> Node | None:
        """The newest conversation with `partner`; None: there was none."""
        self._index(embed)
        about = self._by_subject.get(partner, ())
        chats = [number for number in about if self.nodes[number].kind == "chat"]
        return self.nodes[max(chats, key=self._age)] if chats else None

    def _index(self, embed: Embedder) -> None:
        """Index the nodes added since the last call."""
        for number in range(self._known, len(self.nodes)):
            node = self.nodes[number]
            if number == len(self._vectors):
                self._grow()
            self._vectors[number] = embed(node.text)
            self._index_node(number, node)
            self._accessed_s[number] = self.accessed_s[number]
        self._known = len(self.nodes)

    def _index_node(self, number: int, node: Node) -> None:
        self._importance[number] = node.importance
        self._accessed_s[number] = node.created_s
        for name in _people(node):
            self._by_subject.setdefault(name, set()).add(number)

    def _grow(self) -> None:
        for name in ("_vectors", "_importance", "_accessed_s"):
            old: npt.NDArray[Any] = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros_like(old)]))


def _people(node: Node) -> set[str]:
    """Its subject and object, persons or things."""
    return {node.subject, node.object}


def _scaled(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Scale values to 0..1; all 0 if they are equal."""
    low, high = values.min(), values.max()
    if high - low < 1e-12:
        return np.zeros_like(values)
    scaled: npt.NDArray[np.float64] = (values - low) / (high - low)
    return scaled
