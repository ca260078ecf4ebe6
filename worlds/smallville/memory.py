"""Associative memory: a resident's events, thoughts and chats, and their retrieval.

Memories are retrieved by the weighted sum of three scores, each scaled to 0..1 over the memories in
question (Park et al. 2023, §4.1): recency; importance, 1 to 10 as rated at creation; and relevance,
the cosine between its embedding and the question's. `Settings.recency` selects what is recent:

    hours   the decay to the power of the hours since the last retrieval, over all memories (paper)
    rank    the decay to the power of the rank, over events and thoughts without unused objects, in
            the order of their last retrieval, the longest ago first; so these score highest, as in
            the published code

A memory that occurs again takes the place of the former one, so that none is recalled twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from zlib import crc32

import numpy as np
import numpy.typing as npt

from metropolis.worlds.smallville.embedding import Embedder
from metropolis.worlds.smallville.settings import Settings
from metropolis.worlds.smallville.vectors import Vectors, grown

Kind = Literal["event", "thought", "chat"]
_KINDS: tuple[Kind, ...] = ("event", "thought", "chat")
IDLE = "idle"
"""The state of an unused object."""
_FIRST_CAPACITY = 64
_COLUMNS = "_importance", "_accessed_s", "_created_s", "_kind", "_idle", "_people"


@dataclass(frozen=True, slots=True)
class Node:
    """One memory. Times are simulated seconds since the midnight before step 0."""

    kind: Kind
    text: str
    created_s: int
    """The time at which the memory last occurred."""
    importance: int
    """Importance from 1 (mundane) to 10 (poignant)."""
    subject: str
    predicate: str
    object: str
    evidence: tuple[int, ...] = ()
    """The numbers of the memories on which a thought is based."""


def created(node: Node) -> int:
    """The sort key of nodes: the time at which the memory last occurred."""
    return node.created_s


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
        self._vectors = Vectors()
        self._importance = np.zeros(_FIRST_CAPACITY)
        self._accessed_s = np.zeros(_FIRST_CAPACITY)
        self._created_s = np.zeros(_FIRST_CAPACITY)
        self._kind = np.zeros(_FIRST_CAPACITY, np.int8)
        self._idle = np.zeros(_FIRST_CAPACITY, np.bool_)
        self._people = np.zeros((_FIRST_CAPACITY, 2), np.uint32)
        """(capacity, 2): the checksums of each node's subject and object, which may be people."""
        self._numbers: dict[Kind, dict[str, int]] = {kind: {} for kind in _KINDS}
        for number, node in enumerate(self.nodes):
            self._numbers[node.kind][node.text] = number

    def add(self, node: Node) -> int:
        """Add a node, or replace the one of the same kind and text; returns its number.

        A node that replaces another is removed from its own evidence.
        """
        number = self._numbers[node.kind].setdefault(node.text, len(self.nodes))
        if number in node.evidence:
            others = tuple(one for one in node.evidence if one != number)
            node = replace(node, evidence=others)
        if number == len(self.nodes):
            self.nodes.append(node)
            self.accessed_s.append(node.created_s)
            return number
        if number < self._known:
            self._index_node(number, node)
        self.nodes[number], self.accessed_s[number] = node, node.created_s
        return number

    def forget(self, gone: Callable[[Node], bool]) -> None:
        """Remove the nodes for which `gone` holds; the others are numbered anew."""
        kept = [number for number, node in enumerate(self.nodes) if not gone(node)]
        new = {number: place for place, number in enumerate(kept)}
        self.nodes = [
            replace(
                self.nodes[number],
                evidence=tuple(new[one] for one in self.nodes[number].evidence if one in new),
            )
            for number in kept
        ]
        self.accessed_s = [self.accessed_s[number] for number in kept]
        self.__post_init__()

    def has(self, text: str) -> bool:
        """Whether there is a node of that text."""
        return any(text in numbers for numbers in self._numbers.values())

    def importance(self, kind: Kind, text: str) -> int | None:
        """The importance of the node of that kind and text; None: there is none."""
        number = self._numbers[kind].get(text)
        return None if number is None else self.nodes[number].importance

    def retrieve(
        self, question: str, count: int, now_s: int, embed: Embedder, settings: Settings
    ) -> list[Node]:
        """The `count` memories with the highest scores; updates their time of retrieval."""
        chosen = self.search(question, count, now_s, embed, settings)
        self.touch(chosen, now_s)
        return [self.nodes[number] for number in chosen]

    def search(
        self, question: str, count: int, now_s: int, embed: Embedder, settings: Settings
    ) -> list[int]:
        """The numbers of the `count` memories with the highest scores."""
        numbers, scores = self.scores(question, now_s, embed, settings)
        chosen: list[int] = numbers[np.argsort(-scores, kind="stable")[:count]].tolist()
        return chosen

    def touch(self, numbers: Sequence[int], now_s: int) -> None:
        """Set the time of retrieval of some nodes."""
        for number in numbers:
            self.accessed_s[number] = now_s
            if number < self._known:
                self._accessed_s[number] = now_s

    def latest(self, count: int, among: int) -> list[Node]:
        """The `count` last retrieved of the newest `among` nodes, the most recent one last.

        Unused objects are left out.
        """
        told = (number for number, node in enumerate(self.nodes) if node.object != IDLE)
        newest = sorted(told, key=self._age)[-among:]
        chosen = sorted(newest, key=self.accessed_s.__getitem__)[-count:]
        return [self.nodes[number] for number in chosen]

    def scores(
        self, question: str, now_s: int, embed: Embedder, settings: Settings
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
        """The numbers of the nodes in question, and their scores."""
        self._index(embed)
        if settings.recency == "hours":
            numbers = np.arange(self._known)
            decays = (now_s - self._accessed_s[: self._known]) / 3600
        else:
            numbers = self._by_retrieval()
            decays = np.arange(1.0, len(numbers) + 1)
        # Rounded, so that a processor's order of summation does not decide ties.
        relevance = np.round(self._vectors.products(embed(question)), 5)[numbers]
        total = settings.recency_weight * _scaled(settings.recency_decay**decays)
        total += settings.importance_weight * _scaled(self._importance[numbers])
        total += settings.relevance_weight * _scaled(relevance.astype(np.float64))
        return numbers, total

    def about(self, subject: str, count: int, embed: Embedder) -> list[Node]:
        """The newest `count` memories whose subject or object is `subject`, newest first."""
        return [self.nodes[number] for number in self._about(subject, embed)[: -count - 1 : -1]]

    def _by_retrieval(self) -> npt.NDArray[np.intp]:
        """Events and thoughts without unused objects, the longest not retrieved first.

        Of those retrieved at one time, events come before thoughts, and the newest first.
        """
        kind = self._kind[: self._known]
        told = np.flatnonzero((kind != _KINDS.index("chat")) & ~self._idle[: self._known])
        order = np.lexsort((-told, -self._created_s[told], kind[told], self._accessed_s[told]))
        return told[order]

    def _age(self, number: int) -> tuple[int, int]:
        """A key by which nodes are sorted from the oldest to the newest."""
        return self.nodes[number].created_s, number

    def last_chat(self, partner: str, embed: Embedder) -> Node | None:
        """The newest conversation with `partner`; None: there was none."""
        about = [self.nodes[number] for number in self._about(partner, embed)]
        return next((node for node in reversed(about) if node.kind == "chat"), None)

    def _about(self, name: str, embed: Embedder) -> list[int]:
        """The numbers of the nodes whose subject or object is `name`, from the oldest."""
        self._index(embed)
        nodes, people = self.nodes, self._people[: self._known]
        likely = np.flatnonzero((people == _checksum(name)).any(axis=1)).tolist()
        found = [of for of in likely if name in (nodes[of].subject, nodes[of].object)]
        return sorted(found, key=self._age)

    def _index(self, embed: Embedder) -> None:
        """Index the nodes added since the last call."""
        for number in range(self._known, len(self.nodes)):
            node = self.nodes[number]
            if number == len(self._kind):
                self._grow()
            self._vectors.append(embed(node.text))
            self._index_node(number, node)
            self._accessed_s[number] = self.accessed_s[number]
        self._known = len(self.nodes)

    def _index_node(self, number: int, node: Node) -> None:
        self._kind[number] = _KINDS.index(node.kind)
        self._idle[number] = node.object == IDLE
        self._created_s[number] = node.created_s
        self._importance[number] = node.importance
        self._accessed_s[number] = node.created_s
        self._people[number] = _checksum(node.subject), _checksum(node.object)

    def _grow(self) -> None:
        for name in _COLUMNS:
            setattr(self, name, grown(getattr(self, name)))


def _checksum(text: str) -> int:
    return crc32(text.encode())


def _scaled(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Scale values to 0..1; all 0 if they are equal."""
    low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
    if high - low < 1e-12:
        return np.zeros_like(values)
    scaled: npt.NDArray[np.float64] = (values - low) / (high - low)
    return scaled
