"""Requests of an application: their keys, their order, and what their prompts contain."""

from __future__ import annotations

import re
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.llm.tokens import approximate_tokens
from metropolis.plan import application as module
from metropolis.plan.application import (
    Application,
    ApplicationError,
    Item,
    Node,
    NodeRequest,
    prompt_of,
    template_tokens,
)

KEYS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=5, unique=True)


@st.composite
def sources(draw: st.DrawFn, name: str = "s") -> tuple[Item, ...]:
    """Items whose parts are texts that occur once: NAME.KEY.NUMBER."""
    return tuple(
        Item(key, tuple(f"{name}.{key}.{n}" for n in range(draw(st.integers(1, 4)))))
        for key in draw(KEYS)
    )


def made(
    items: dict[str, tuple[Item, ...]], *nodes: Node
) -> tuple[Application, dict[str, tuple[NodeRequest, ...]]]:
    application = Application("app", items, nodes)
    return application, application.requests()


@given(sources(), st.integers(1, 3))
def test_a_node_has_a_request_for_each_part(items: tuple[Item, ...], times: int) -> None:
    _, requests = made({"s": items}, Node("n", "m", ("s",), times=times))
    parts = [(key, part) for key, part in ((each.key, each.parts[0][1]) for each in requests["n"])]
    expected = [
        (item.key if times == 1 else f"{item.key}#{copy + 1}", part)
        for item in items
        for copy in range(times)
        for part in item.parts
    ]
    assert parts == expected
    assert all(each.previous is None and not each.answers for each in requests["n"])


@given(sources(), st.integers(1, 3))
def test_a_chain_has_the_parts_of_an_item_one_after_another(
    items: tuple[Item, ...], times: int
) -> None:
    _, requests = made({"s": items}, Node("n", "m", ("s",), chain=True, times=times))
    chains = [list(group) for _, group in groupby(enumerate(requests["n"]), lambda p: p[1].key)]
    assert len(chains) == len(items) * times
    for number, chain in enumerate(chains):
        item = items[number // times]
        assert [each.parts for _, each in chain] == [(("s", part),) for part in item.parts]
        indices = [index for index, _ in chain]
        assert [each.previous for _, each in chain] == [None, *indices[:-1]]


@given(sources(), st.sampled_from(["last", "all"]), st.integers(1, 2))
def test_what_follows_a_chain_has_its_last_answer_or_all(
    items: tuple[Item, ...], results: str, times: int
) -> None:
    chain = Node("c", "m", ("s",), chain=True, results=results, times=times)  # type: ignore[arg-type]
    _, requests = made({"s": items}, chain, Node("n", "m", ("c",)))
    indices = range(len(requests["c"]))
    followed = {each.previous for each in requests["c"]}
    wanted = [index for index in indices if results == "all" or index not in followed]
    assert [each.answers for each in requests["n"]] == [(("c", "c", index),) for index in wanted]
    assert [each.key for each in requests["n"]] == [requests["c"][index].key for index in wanted]


def test_chains_of_several_inputs_each_have_a_last_answer() -> None:
    """Also chains with the same key."""
    items = {name: (Item("a", (f"{name}.0", f"{name}.1")),) for name in "st"}
    chain = Node("c", "m", ("s", "t"), join="each", chain=True)
    _, requests = made(items, chain, Node("n", "m", ("c",)))
    assert [each.previous for each in requests["c"]] == [None, 0, None, 2]
    assert [each.answers for each in requests["n"]] == [(("c", "c", 1),), (("c", "c", 3),)]


@given(sources("s"), sources("t"))
def test_inputs_are_joined_by_key(left: tuple[Item, ...], right: tuple[Item, ...]) -> None:
    common = [item.key for item in left if item.key in {other.key for other in right}]
    node = Node("n", "m", ("s", "t", "first"))
    given_nodes = (node, Node("first", "m", ("s",)))
    if not common:
        with pytest.raises(ApplicationError, match="'n' has no requests: no key occurs in all"):
            made({"s": left, "t": right}, *given_nodes)
        return
    application, requests = made({"s": left, "t": right}, *given_nodes)
    assert [each.key for each in requests["n"]] == common
    answers = {("first", index): f"answer.{index}" for index in range(len(requests["first"]))}
    for request in requests["n"]:
        keys = {each.key: each for each in left}, {each.key: each for each in right}
        parts = [part for by_key in keys for part in by_key[request.key].parts]
        before = [i for i, each in enumerate(requests["first"]) if each.key == request.key]
        expected = [*parts, *(f"answer.{index}" for index in before)]
        assert prompt_of(application.node("n"), request, answers).split("\n\n") == expected


@given(sources("s"), sources("t"), st.integers(1, 3))
def test_inputs_one_by_one(left: tuple[Item, ...], right: tuple[Item, ...], times: int) -> None:
    _, requests = made(
        {"s": left, "t": right}, Node("n", "m", ("s", "t"), join="each", times=times)
    )
    parts = [part for items in (left, right) for item in items for part in item.parts]
    assert sorted(each.parts[0][1] for each in requests["n"]) == sorted(parts * times)  # type: ignore[type-var]


@given(sources(), st.text("{}ab \n", max_size=12))
def test_a_template_is_filled_in(items: tuple[Item, ...], text: str) -> None:
    """Braces in the text around are written twice, and stay single."""
    around = text.replace("{", "{{").replace("}", "}}")
    node = Node("n", "m", ("s",), template=f"{around}<{{s}}>{{previous}}", chain=True)
    _, requests = made({"s": items}, node)
    answers = {("n", index): f"answer.{index}" for index in range(len(requests["n"]))}
    for request in requests["n"]:
        before = "" if request.previous is None else f"answer.{request.previous}"
        assert prompt_of(node, request, answers) == f"{text}<{request.parts[0][1]}>{before}"
    assert template_tokens(node) == approximate_tokens(f"{text}<>")


def test_a_known_length_stays_with_its_part() -> None:
    items = {"s": (Item("a", (3, 4), (30, 40)), Item("b", (5,)))}
    _, requests = made(items, Node("n", "m", ("s",), times=2))
    lengths = [(each.parts[0][1], each.output_tokens) for each in requests["n"]]
    assert lengths == [(3, 30), (4, 40), (3, 30), (4, 40), (5, None), (5, None)]


A = Item("a", ("x", "y"))
FAULTS = {
    "need each other's answers: ": [Node("n", "m", ("k",)), Node("k", "m", ("n",))],
    "needs its own answers; .* chain = true": [Node("n", "m", ("n",))],
    r"inputs: there is no source or node 'ss' \(did you mean 's'": [Node("n", "m", ("ss",))],
    "has no inputs": [Node("n", "m", ())],
    "names an input twice": [Node("n", "m", ("s", "s"))],
    "2 sources or nodes are called 's'": [Node("s", "m", ("s",))],
    "'a b' cannot be a name": [Node("a b", "m", ("s",))],
    "'previous' cannot be a name": [Node("previous", "m", ("s",))],
    "times is 0": [Node("n", "m", ("s",), times=0)],
    "max_tokens is 0": [Node("n", "m", ("s",), max_tokens=0)],
    "is a chain, so it has one input": [
        Node("n", "m", ("s", "k"), chain=True),
        Node("k", "m", ("s",)),
    ],
    "the template lacks {s}": [Node("n", "m", ("s",), template="text")],
    "the template lacks {previous}": [Node("n", "m", ("s",), template="{s}", chain=True)],
    "the template has {}; it may have {s}": [Node("n", "m", ("s",), template="{s} {}")],
    "the template has {s!r}": [Node("n", "m", ("s",), template="{s!r}")],
    "the template has {s:d}": [Node("n", "m", ("s",), template="{s:d}")],
    "the template has {s.join}": [Node("n", "m", ("s",), template="{s.join}")],
    "the template is not a valid format": [Node("n", "m", ("s",), template="{s")],
    "has no nodes": [],
}


@pytest.mark.parametrize("sentence", FAULTS)
def test_faults_are_refused(sentence: str) -> None:
    pattern = sentence if "\\" in sentence or ".*" in sentence else re.escape(sentence)
    with pytest.raises(ApplicationError, match=pattern):
        Application("app", {"s": (A,)}, tuple(FAULTS[sentence]))


def test_too_many_requests_are_refused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUESTS_MAX", 10)
    nodes = [Node("n", "m", ("s",), times=5)]
    Application("app", {"s": (A,)}, tuple(nodes))
    nodes.append(Node("k", "m", ("n",), times=1 << 22))
    with pytest.raises(ApplicationError, match="'k': with its requests there are more than 10"):
        Application("app", {"s": (A,)}, tuple(nodes))
