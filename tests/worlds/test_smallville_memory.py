"""Memory against the formula of the paper, and the embedder's properties."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.worlds.smallville.embedding import DIMENSIONS, hashed_words
from metropolis.worlds.smallville.memory import IDLE, Memory, Node
from metropolis.worlds.smallville.settings import PRESETS
from metropolis.worlds.smallville.vectors import Vectors

PAPER, CODE = PRESETS["paper"], PRESETS["code-1.0"]

WORDS = st.sampled_from(
    ["lantern", "lanterns", "cat", "bread", "festival", "walks", "the", "reads"]
)
TEXTS = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)
NODES = st.tuples(TEXTS, st.integers(1, 10), st.integers(0, 499_999))


def cosine(one: str, other: str) -> float:
    return float(np.dot(hashed_words(one).astype(float), hashed_words(other).astype(float)))


def scaled(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    return [0.0 if high - low < 1e-12 else (value - low) / (high - low) for value in values]


def filled(nodes: list[tuple[str, int, int]]) -> Memory:
    memory = Memory()
    for text, importance, accessed_s in nodes:
        memory.add(Node("event", text, accessed_s, importance, "Ann", "is", text))
    return memory


@settings(max_examples=60, deadline=None)
@given(st.lists(NODES, min_size=1, max_size=30), TEXTS)
def test_what_comes_to_mind(nodes: list[tuple[str, int, int]], question: str) -> None:
    now_s = 500_000
    memory = filled(nodes)
    last = {text: (text, importance, at) for text, importance, at in nodes}
    nodes = list(last.values())  # a text that occurs again replaces the former memory
    expected = [
        sum(scores)
        for scores in zip(
            scaled([0.995 ** ((now_s - accessed_s) / 3600) for _, _, accessed_s in nodes]),
            scaled([float(importance) for _, importance, _ in nodes]),
            scaled([round(cosine(text, question), 5) for text, _, _ in nodes]),
            strict=True,
        )
    ]
    numbers, scores = memory.scores(question, now_s, hashed_words, PAPER)
    assert numbers.tolist() == list(range(len(nodes)))
    assert np.allclose(scores, expected, atol=1e-4)
    found = memory.retrieve(question, 5, now_s, hashed_words, PAPER)
    worst = min(expected[memory.nodes.index(node)] for node in found)
    assert len(found) == min(5, len(nodes))
    assert sum(score > worst + 1e-3 for score in expected) < len(found)
    accessed = [at for at in memory.accessed_s if at == now_s]
    assert len(accessed) == len(found)


OCCASIONS = st.lists(
    st.tuples(
        st.sampled_from(["event", "thought", "chat"]),
        TEXTS,
        st.integers(1, 10),
        st.integers(0, 9),
        st.booleans(),
    ),
    max_size=25,
)


@settings(max_examples=100, deadline=None)
@given(OCCASIONS, TEXTS, TEXTS)
def test_what_comes_to_mind_in_the_published_code(
    occasions: list[Any], before: str, question: str
) -> None:
    """Recency by rank: the memory that was retrieved the longest ago scores highest."""
    memory = Memory()
    for kind, text, importance, at_s, idle in occasions:
        memory.add(Node(kind, text, at_s, importance, "Ann", "is", IDLE if idle else text))
    memory.retrieve(before, 3, 5, hashed_words, CODE)
    told = [
        (memory.accessed_s[number], node.kind != "event", -node.created_s, -number)
        for number, node in enumerate(memory.nodes)
        if node.kind != "chat" and node.object != IDLE
    ]
    order = [-number for *_, number in sorted(told)]
    numbers, scores = memory.scores(question, 10, hashed_words, CODE)
    assert numbers.tolist() == order
    nodes = [memory.nodes[number] for number in order]
    recency = scaled([0.99 ** (rank + 1) for rank in range(len(nodes))]) if nodes else []
    importance = scaled([float(node.importance) for node in nodes]) if nodes else []
    relevance = scaled([round(cosine(node.text, question), 5) for node in nodes]) if nodes else []
    weighted = zip(recency, importance, relevance, strict=True)
    assert np.allclose(scores, [0.5 * a + 2 * b + 3 * c for a, b, c in weighted], atol=1e-3)


def test_a_memory_grows_beyond_its_first_arrays() -> None:
    memory = filled([(f"event number {i}", 1, i) for i in range(300)])
    memory.retrieve("event", 3, 1000, hashed_words, PAPER)
    for i in range(300, 700):
        memory.add(Node("event", f"event number {i}", i, 1, "Ann", "is", "there"))
    assert memory.retrieve("number 650", 1, 1000, hashed_words, PAPER)[0].text == "event number 650"


def test_a_thought_that_occurs_again_is_no_evidence_of_itself() -> None:
    memory = filled([("bread", 1, 0)])
    for evidence in ((0,), (0, 1)):
        thought = Node("thought", "Ann likes bread", 10, 6, "Ann", "likes", "bread", evidence)
        assert memory.add(thought) == 1
        assert memory.nodes[1].evidence == (0,)


def test_what_came_to_mind_is_recent() -> None:
    memory = filled([("old bread", 5, 0), ("old cat", 5, 0)])
    memory.retrieve("bread", 1, 360_000, hashed_words, PAPER)
    assert memory.accessed_s == [360_000, 0]
    assert (
        memory.retrieve("nothing of the kind", 1, 400_000, hashed_words, PAPER)[0].text
        == "old bread"
    )


def test_about_somebody_the_newest_first() -> None:
    memory = Memory()
    for i, name in enumerate(["Ann", "Ben", "Ann", "Ann"]):
        memory.add(Node("event", f"{name} {i}", 0, 1, name, "is", "here"))
    assert [node.text for node in memory.about("Ann", 2, hashed_words)] == ["Ann 3", "Ann 2"]
    assert memory.about("Carl", 2, hashed_words) == []


@given(st.text(max_size=80))
def test_vectors_have_unit_length_or_none(text: str) -> None:
    vector = hashed_words(text)
    assert vector.shape == (DIMENSIONS,)
    assert vector.dtype == np.float32
    assert math.isclose(float(vector @ vector), 1, rel_tol=1e-5) or not vector.any()


@given(TEXTS, st.randoms())
def test_order_and_case_do_not_matter(text: str, random: object) -> None:
    words = text.split()
    random.shuffle(words)  # type: ignore[attr-defined]
    assert np.array_equal(hashed_words(text), hashed_words(" ".join(words).upper()))


def test_words_that_begin_alike_are_near() -> None:
    near = cosine("she was baking bread", "baked breads")
    assert cosine("lantern", "potato") < near < cosine("bread", "bread")


OCCURRENCES = st.lists(
    st.tuples(st.sampled_from(["event", "thought"]), TEXTS, st.sampled_from(["Ann", "Ben"])),
    min_size=1,
    max_size=20,
)


@given(OCCURRENCES, st.integers(0, 19))
def test_a_memory_that_occurs_again_is_renewed(occurrences: list[Any], retrieved: int) -> None:
    """Against a list of all occurrences, and against a memory restored from its fields."""
    memory = Memory()
    for at, (kind, text, subject) in enumerate(occurrences):
        memory.add(Node(kind, text, at, at % 10 + 1, subject, "is", text))
        if at == retrieved:
            memory.retrieve("cat", 2, at, hashed_words, PAPER)
    last = {(kind, text): at for at, (kind, text, _) in enumerate(occurrences)}
    assert {(node.kind, node.text): node.created_s for node in memory.nodes} == last
    assert len(memory.nodes) == len(last)
    restored = Memory(list(memory.nodes), list(memory.accessed_s))
    for one in (memory, restored):
        about = [node.created_s for node in one.about("Ann", 99, hashed_words)]
        assert about == sorted(
            (at for at in last.values() if occurrences[at][2] == "Ann"), reverse=True
        )
        assert all(one.importance(*key) == at % 10 + 1 for key, at in last.items())
    assert memory.latest(5, 9) == restored.latest(5, 9)
    for rule in PRESETS.values():
        scores = [one.scores("bread", 99, hashed_words, rule) for one in (memory, restored)]
        assert all(map(np.array_equal, *scores))


@given(OCCURRENCES)
def test_what_is_forgotten_is_never_recalled(occurrences: list[Any]) -> None:
    """The others keep their times of retrieval and evidence."""
    memory = Memory()
    for at, (kind, text, subject) in enumerate(occurrences):
        evidence = tuple(range(len(memory.nodes)))
        memory.add(Node(kind, text, at, 5, subject, "is", text, evidence))
    memory.retrieve("cat", 3, 99, hashed_words, PAPER)
    before = dict(zip(memory.nodes, memory.accessed_s, strict=True))
    texts = {node: [memory.nodes[one].text for one in node.evidence] for node in memory.nodes}
    memory.forget(lambda node: "cat" in node.text)
    assert [node.text for node in memory.nodes] == [n.text for n in before if "cat" not in n.text]
    for node, accessed_s in zip(memory.nodes, memory.accessed_s, strict=True):
        old = next(one for one in before if (one.kind, one.text) == (node.kind, node.text))
        assert accessed_s == before[old]
        kept = [text for text in texts[old] if "cat" not in text]
        assert [memory.nodes[one].text for one in node.evidence] == kept
    assert all("cat" not in n.text for n in memory.retrieve("cat", 9, 100, hashed_words, PAPER))


@given(st.lists(st.integers(0, DIMENSIONS), max_size=20), st.integers(0, 99))
def test_vectors_are_those_that_were_added(filled: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    added, vectors = np.zeros((len(filled), DIMENSIONS), np.float32), Vectors()
    for vector, count in zip(added, filled, strict=True):
        places = random.choice(DIMENSIONS, count, replace=False)
        vector[places] = random.normal(size=count)
        vectors.append(vector)
    question = random.normal(size=DIMENSIONS).astype(np.float32)
    assert np.array_equal(vectors.products(question), added @ question)
