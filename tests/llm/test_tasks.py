"""Calls of concurrent tasks: their parents, and the seeds of equal requests."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any

import pytest

from metropolis.llm import LLM, Client
from metropolis.llm.base import Completion, Request
from metropolis.llm.call_log import CallLog, CallRecord, Strand, in_strand
from metropolis.llm.followed_tasks import follow_tasks
from tests.llm.fakes import Fake
from tests.llm.virtual_loop import run_virtually


class Uneven(Fake):
    """An answer is the seed of its request, and comes after a random time, or at once."""

    def __init__(self, seed: int, at_once: float = 0.0) -> None:
        super().__init__()
        self._draw, self._at_once = Random(seed), at_once

    async def complete(self, request: Request) -> Completion:
        self.sent.append((0.0, request))
        if self._draw.random() >= self._at_once:
            await asyncio.sleep(self._draw.random())
        return Completion(str(request.seed), 5, 7, "stop")


def run(proceed: Callable[[LLM], Awaitable[Any]], backend: Fake) -> Any:
    log = CallLog()
    llm = LLM(Client(backend), agent=3, step=14, seed=7, log=log, program="ann")

    async def main() -> Any:
        follow_tasks(asyncio.get_running_loop())
        log.clock = log.instant = asyncio.get_running_loop().time
        with in_strand(log.strand()):
            return await proceed(llm)

    return run_virtually(main())


async def chain(llm: LLM, *prompts: str) -> None:
    for prompt in prompts:
        await llm.chat(prompt)


def test_a_task_that_ends_together_with_a_call_is_waited_for() -> None:
    """Its callbacks run only after its creator, which got an answer in the same iteration."""

    async def proceed(llm: LLM) -> list[tuple[int, ...]]:
        task = asyncio.ensure_future(llm.chat("b"))
        await asyncio.sleep(0)
        await llm.chat("a")
        await task
        await llm.chat("c")
        return [tuple(number for _, number in call.parents) for call in llm.calls]

    assert run(proceed, Fake()) == [(), (), (0, 1)]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="they are new in Python 3.14")
def test_eager_tasks() -> None:
    async def begun(llm: LLM) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(llm.chat("a"), eager_start=True)
            group.create_task(llm.chat("b"))
        await llm.chat("c")

    async def proceed(llm: LLM) -> list[tuple[int, ...]]:
        await asyncio.create_task(begun(llm), eager_start=True)
        await llm.chat("d")
        return [tuple(number for _, number in call.parents) for call in llm.calls]

    assert run(proceed, Fake()) == [(), (), (0, 1), (2,)]


def test_waves_of_calls_compare_a_call_with_the_wave_before_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[int] = []
    true = CallLog.latest

    def latest(self: CallLog, calls: frozenset[int]) -> tuple[frozenset[int], int]:
        compared.append(len(calls))
        return true(self, calls)

    monkeypatch.setattr(CallLog, "latest", latest)

    async def proceed(llm: LLM) -> None:
        for _ in range(20):
            await asyncio.gather(*(llm.chat("a") for _ in range(3)))

    run(proceed, Fake())
    assert max(compared) == 6  # two waves: one is reduced when the next one begins


async def turns(llm: LLM) -> None:
    """A conversation: while one speaks, the other's next turn is prepared."""
    async with asyncio.TaskGroup() as group:
        prepared = [group.create_task(named(llm, f"prepares {turn}")) for turn in (0, 1)]
        for turn in (0, 1, 2, 3):
            await prepared[turn]
            said = group.create_task(named(llm, f"says {turn}"))
            prepared.append(group.create_task(named(llm, f"prepares {turn + 2}")))
            await said


async def results(llm: LLM) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(named(llm, name)) for name in "abcd"]
        await named(llm, "e")
        await asyncio.wait(tasks[:2])
        assert tasks[0].result() is tasks[1].exception() is None
        await named(llm, "f")
        while not tasks[2].done():
            await asyncio.sleep(0.01)
        await named(llm, "g")
    await named(llm, "h")


async def a_group_of_others(llm: LLM) -> None:
    async def begin() -> None:
        group.create_task(named(llm, "a"))
        await named(llm, "b")

    async with asyncio.TaskGroup() as group:
        task = group.create_task(begin())
        await named(llm, "c")
        await task
        await named(llm, "d")
    await named(llm, "e")


async def gathered(llm: LLM) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = {name: group.create_task(named(llm, name)) for name in "abc"}
        await asyncio.gather(tasks["a"], named(llm, "d"))
        await named(llm, "e")
        await asyncio.gather(tasks["a"], tasks["b"])
        await asyncio.shield(tasks["c"])
        await named(llm, "f")


async def a_member_that_begins_others(llm: LLM) -> None:
    """It does not wait for them, though the body of the group has ended."""

    async def begin() -> None:
        group.create_task(named(llm, "a"))
        await named(llm, "b")
        await named(llm, "c")

    async with asyncio.TaskGroup() as group:
        group.create_task(begin())
    await named(llm, "d")


async def a_group_filled_from_outside(llm: LLM) -> None:
    async def fill(group: asyncio.TaskGroup) -> None:
        group.create_task(named(llm, "a"))
        await named(llm, "b")

    async with asyncio.TaskGroup() as outer:
        async with asyncio.TaskGroup() as group:
            outer.create_task(fill(group))
            group.create_task(named(llm, "c"))
        await named(llm, "d")
    await named(llm, "e")


def an_event_between(
    wait: Callable[[asyncio.Task[Any]], Awaitable[Any]],
) -> Callable[[LLM], Awaitable[None]]:
    async def proceed(llm: LLM) -> None:
        event = asyncio.Event()

        async def set_event() -> None:
            await named(llm, "a")
            event.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(set_event())
            slow = group.create_task(chain(llm, *["slow"] * 3))
            await event.wait()
            await wait(slow)
            await named(llm, "b")

    return proceed


async def poll(task: asyncio.Task[Any]) -> None:
    while not task.done():
        await asyncio.sleep(0.01)


WAITS: list[Callable[[asyncio.Task[Any]], Any]] = [
    lambda task: task,
    lambda task: asyncio.gather(task),
    lambda task: asyncio.wait([task]),
    lambda task: asyncio.wait_for(task, 1000),
    asyncio.shield,
    poll,
]


async def named(llm: LLM, function: str) -> None:
    await llm.chat("x", function=function)


@pytest.mark.parametrize(
    ("proceed", "expected"),
    [
        (
            turns,
            {"prepares 0": "", "prepares 1": "", "says 0": "prepares 0", "prepares 2": "prepares 0"}
            | {
                f"{does} {turn + more}": f"prepares {turn}, says {turn - 1}"
                for turn in (1, 2, 3)
                for does, more in (("says", 0), ("prepares", 2))
            },
        ),
        (
            results,
            dict.fromkeys("abcde", "") | {"f": "a, b, e", "g": "c, f", "h": "d, g"},
        ),
        (a_group_of_others, dict.fromkeys("abc", "") | {"d": "b, c", "e": "a, d"}),
        (gathered, dict.fromkeys("abcd", "") | {"e": "a, d", "f": "b, c, e"}),
        (a_member_that_begins_others, {"a": "", "b": "", "c": "b", "d": "a, c"}),
        (a_group_filled_from_outside, dict.fromkeys("abc", "") | {"d": "a, c", "e": "b, d"}),
        *((an_event_between(wait), {"a": "", "chat": "chat", "b": "a, chat"}) for wait in WAITS),
    ],
)
def test_parents_of_calls_in_groups_do_not_depend_on_latency(
    proceed: Callable[[LLM], Awaitable[None]], expected: dict[str, str]
) -> None:
    async def parents(llm: LLM) -> dict[str, str]:
        await proceed(llm)
        names = [call.function for call in llm.calls]
        return {
            call.function: ", ".join(sorted(names[number] for _, number in call.parents))
            for call in llm.calls
        }

    for seed in range(20):
        assert run(parents, Uneven(seed)) == expected


def test_calls_of_another_step_are_no_parents() -> None:
    """A task that an agent keeps, against the rules, has calls of another log."""

    async def main() -> list[CallRecord]:
        follow_tasks(asyncio.get_running_loop())
        kept: list[asyncio.Task[Any]] = []
        for step in (0, 1):
            log = CallLog()
            log.clock = log.instant = asyncio.get_running_loop().time
            llm = LLM(Client(Fake()), agent=3, step=step, seed=7, log=log, program="ann")
            with in_strand(log.strand()):
                if step:
                    await named(llm, "b")
                    await asyncio.gather(*kept)
                    await named(llm, "c")
                else:
                    kept.append(asyncio.create_task(chain(llm, "a", "a", "a")))
        return llm.calls

    calls = run_virtually(main())
    assert [(call.function, call.parents) for call in calls] == [("b", ()), ("c", ((3, 0),))]


def test_strands_are_freed_without_the_collector() -> None:
    """Cycles of references in every step would cost a tenth of the CPU time of a run."""

    async def proceed(llm: LLM) -> None:
        await chain(llm, "a")
        await asyncio.gather(llm.chat("b"), chain(llm, "c", "d"))
        await chain(llm, "e")
        async with asyncio.TaskGroup() as group:
            await group.create_task(llm.chat("f"))
            group.create_task(chain(llm, "g", "h"))

    gc.collect()
    gc.disable()
    others = strands()  # other tests may leave threads
    try:
        run(proceed, Fake())
        assert all(any(one is other for other in others) for one in strands())
    finally:
        gc.enable()


def strands() -> list[Strand]:
    return [one for one in gc.get_objects() if type(one) is Strand]


def test_a_task_with_a_context_of_its_own_runs_in_it() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="none")

    async def read() -> str:
        return variable.get()

    async def proceed(llm: LLM) -> list[str]:
        variable.set("outer")
        context = copy_context()

        async def inner() -> str:  # its context is entered when it creates the task
            return await asyncio.create_task(read(), context=context)

        empty = asyncio.create_task(read(), context=Context())
        found = [await empty, await asyncio.create_task(inner(), context=context)]
        await asyncio.create_task(chain(llm, "a"), context=Context())
        return found

    assert run(proceed, Fake()) == ["none", "outer"]


async def votes(llm: LLM) -> None:
    await llm.chat("a")
    await asyncio.gather(*(llm.chat("x") for _ in range(3)))


async def nested(llm: LLM) -> None:
    async def two() -> None:
        await asyncio.gather(llm.chat("x"), llm.chat("x"))

    await asyncio.gather(two(), two())


async def in_turn(llm: LLM) -> None:
    """A lock lets tasks that begin with equal requests pass in their order."""
    semaphore = asyncio.Semaphore(2)

    async def one() -> None:
        async with semaphore:
            await llm.chat("x")

    await asyncio.gather(*(one() for _ in range(5)))


async def again(llm: LLM) -> None:
    """Each repetition is a task, which the next one waits for."""
    for _ in range(3):
        await asyncio.ensure_future(chain(llm, "a", "x"))
    await llm.chat("x")


async def after_a_timeout(llm: LLM) -> None:
    await llm.chat("a")
    for limit_s in (0.5, 0.5, 5):
        try:
            await asyncio.wait_for(llm.chat("x"), limit_s)
        except TimeoutError:
            continue


async def taken(llm: LLM) -> None:
    """Who sends a request may depend on latency, if none has an equal one."""
    left = list("abcdef")

    async def work() -> None:
        while left:
            await llm.chat(left.pop())

    await asyncio.gather(work(), work(), work())


@pytest.mark.parametrize("proceed", [votes, nested, in_turn, again, after_a_timeout, taken])
def test_equal_requests_in_a_fixed_order(proceed: Callable[[LLM], Awaitable[Any]]) -> None:
    """Neither latency nor answers that are known at once change their seeds."""
    found = set()
    for seed in range(5):
        at_once = seed % 2 * 0.4
        backend = Fake() if proceed is after_a_timeout else Uneven(seed, at_once)
        run(proceed, backend)
        found.add(frozenset((request.text, request.seed) for _, request in backend.sent))
    assert len(found) == 1
