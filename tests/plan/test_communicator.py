"""The communicator: every request is sent once what it needs is known, in any order of answers."""

from __future__ import annotations

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from metropolis.llm.base import Completion
from metropolis.plan.application import Application, ApplicationError, Item, Node
from metropolis.plan.running.communicator import Call, Communicator

KEYS = ("k", "l", "m")


@st.composite
def applications(draw: st.DrawFn) -> Application:
    """One source, and up to four nodes, each with the source or nodes before it as inputs."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    items = tuple(
        Item(key, tuple(f"[{key}{part}]" for part in range(parts)))
        for key, parts in zip(KEYS, counts, strict=False)
    )
    nodes: list[Node] = []
    for name in "abcd"[: draw(st.integers(1, 4))]:
        earlier = ["s", *(node.name for node in nodes)]
        inputs = draw(st.lists(st.sampled_from(earlier), min_size=1, max_size=2, unique=True))
        chain = len(inputs) == 1 and draw(st.booleans())
        nodes.append(
            Node(
                name,
                "model",
                tuple(inputs),
                join=draw(st.sampled_from(("concatenate", "each"))),
                chain=chain,
                results=draw(st.sampled_from(("last", "all"))) if chain else "last",
                times=draw(st.integers(1, 2)),
            )
        )
    try:
        return Application("drawn", {"s": items}, tuple(nodes))
    except ApplicationError:  # repeated requests have keys that others lack
        reject()


def answer(call: Call) -> Completion:
    return Completion(f"<{call[0]}{call[1]}>", 1, 1, "stop")


def needs_of(communicator: Communicator, call: Call) -> set[Call]:
    request = communicator.requests[call[0]][call[1]]
    needs = {(node, index) for _, node, index in request.answers}
    return needs if request.previous is None else needs | {(call[0], request.previous)}


@settings(max_examples=60)
@given(applications(), st.data())
def test_every_request_is_sent_when_its_needs_are_answered(
    application: Application, data: st.DataObject
) -> None:
    every = {
        (name, index)
        for name, requests in application.requests().items()
        for index in range(len(requests))
    }
    known: set[Call] = set()  # of an earlier process: answers with all that they need
    for call in sorted(every, key=lambda call: ("abcd".index(call[0]), call[1])):
        if needs_of(Communicator(application, {}), call) <= known and data.draw(st.booleans()):
            known.add(call)
    communicator = Communicator(application, {call: answer(call) for call in known})
    sent: set[Call] = set()
    while communicator.unfinished:
        for name in communicator.requests:
            while (index := communicator.take(name)) is not None:
                assert (name, index) not in sent | known
                assert needs_of(communicator, (name, index)) <= known
                sent.add((name, index))
        assert sent, "requests wait, and none can be sent"
        call = data.draw(st.sampled_from(sorted(sent)))
        sent.remove(call)
        if data.draw(st.booleans()):
            communicator.put_back(call)
            continue
        prompt = communicator.prompt(call)
        for need in needs_of(communicator, call):
            assert answer(need).text in prompt
        for _, part in communicator.requests[call[0]][call[1]].parts:
            assert str(part) in prompt
        woken = communicator.answered(call, answer(call))
        known.add(call)
        unsent = every - known - sent
        assert woken == {
            other[0] for other in unsent
            if call in needs_of(communicator, other) and needs_of(communicator, other) <= known
        }  # fmt: skip
    assert known == every
    assert all(communicator.open_requests(name) == 0 for name in communicator.requests)


def test_a_number_of_tokens_is_refused_before_anything_is_sent() -> None:
    application = Application("a", {"s": (Item("k", (21,)),)}, (Node("n", "model", ("s",)),))
    with pytest.raises(ApplicationError, match="'k' of 's' has a number of tokens and no text"):
        Communicator(application, {})
