"""Requests of concurrent tasks: their seeds and keys depend neither on latency nor on order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from metropolis.llm import LLM, Client
from metropolis.llm.base import Completion, Request
from metropolis.llm.call_log import CallLog, follow_tasks, in_strand
from metropolis.llm.journal import key_of
from tests.llm.fakes import Fake
from tests.llm.virtual_loop import run_virtually

Work: TypeAlias = Sequence[Any]
"""What a task does in turn: a prompt is a call, a tuple of works runs them in tasks and waits for
them, a list of works in tasks that are awaited at the end."""

prompts = st.sampled_from(["a", "b"])
works: st.SearchStrategy[Work] = st.recursive(
    st.lists(prompts, min_size=1, max_size=3),
    lambda work: st.lists(
        prompts
        | st.lists(work, min_size=1, max_size=3).map(tuple)
        | st.lists(work, min_size=1, max_size=2),
        min_size=1,
        max_size=4,
    ),
    max_leaves=12,
)


class Uneven(Fake):
    """Some answers are known at once, as on resuming; others come after a random time."""

    def __init__(self, draw: Random) -> None:
        super().__init__(lambda request: Completion(str(request.seed), 5, 7, "stop"))
        self._draw = draw

    async def complete(self, request: Request) -> Completion:
        if self._draw.random() < 0.3:
            self.sent.append((0.0, request))
            return Completion(str(request.seed), 5, 7, "stop")
        await asyncio.sleep(self._draw.random())
        return await super().complete(request)


def answers(work: Work, backend: Fake) -> dict[tuple[int, ...], str]:
    """The answers by place in the work; an answer is the seed of its request."""
    log, found = CallLog(), dict[tuple[int, ...], str]()
    llm = LLM(Client(backend), agent=3, step=14, seed=7, log=log)

    async def do(work: Work, place: tuple[int, ...]) -> None:
        behind = []
        for index, item in enumerate(work):
            at = (*place, index)
            if isinstance(item, str):
                found[at] = (await llm.chat(item)).text
                continue
            tasks = [asyncio.ensure_future(do(one, (*at, n))) for n, one in enumerate(item)]
            if isinstance(item, tuple):
                await asyncio.gather(*tasks)
            else:
                behind += tasks
        await asyncio.gather(*behind)

    async def proceed() -> None:
        follow_tasks(asyncio.get_running_loop())
        with in_strand(log.strand()):
            await do(work, ())

    run_virtually(proceed())
    return found


@given(work=works, seed=st.integers(0, 999))
def test_neither_latency_nor_known_answers_change_a_request(work: Work, seed: int) -> None:
    first, second = Fake(lambda r: Completion(str(r.seed), 5, 7, "stop")), Uneven(Random(seed))
    assert answers(work, first) == answers(work, second)
    requests = [request for _, request in first.sent]
    assert len({request.seed for request in requests}) == len(requests)
    assert {key_of(request) for request in requests} == {key_of(r) for _, r in second.sent}
    assert len({key_of(request) for request in requests}) == len(requests)


@given(order=st.permutations(range(5)))
def test_the_order_in_which_tasks_are_created_does_not_matter(order: Sequence[int]) -> None:
    chains = [["a", "c"], ["a", "c"], ["b", "c"], ["d", (["a"], ["a"]), "c"], ["g"]]
    expected = sorted(answers([tuple(chains)], Uneven(Random(0))).values())
    found = answers([tuple(chains[index] for index in order)], Uneven(Random(1)))
    assert sorted(found.values()) == expected
    assert len(set(expected)) == len(expected)


def test_requests_before_and_after_tasks_are_those_of_one_task() -> None:
    assert answers(["a", "a"], Fake(lambda r: Completion(str(r.seed), 5, 7, "stop"))) == {
        (index[-1] // 2,): text
        for index, text in answers(
            ["a", (["a"],), "a"], Fake(lambda r: Completion(str(r.seed), 5, 7, "stop"))
        ).items()
        if len(index) == 1
    }
