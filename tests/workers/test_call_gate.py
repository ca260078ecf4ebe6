"""Calls of agents that run ahead wait when they will probably be in vain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import pytest

from metropolis.llm.journal import Key
from metropolis.rules.metrics import CHEBYSHEV
from metropolis.workers.optimistic import call_gate
from metropolis.workers.optimistic.call_gate import CallGate, Risk, WasteChances
from metropolis.world.entities import Entity
from metropolis.world.state import State

FIRST = 100
ALONE, CROWD = Risk(), Risk(1, 1)


class Steps:
    """Agents at given steps."""

    def __init__(self, steps: Mapping[int, int]) -> None:
        self.steps = dict(steps)

    def next_step(self, agent: int) -> int:
        return self.steps[agent]


def gate_of(
    steps: Steps, *, there: float = 2.0, waste_budget: float = 0.5, waiting_max: float = inf
) -> CallGate:
    """A gate for agent 0 at (0, 0) and agent 1 at (there, 0), who see 4 tiles far."""
    bodies = [Entity("a", (0, 0), "agent"), Entity("b", (there, 0), "agent")]
    state = State(CHEBYSHEV, 4, bodies, FIRST)
    speculation: Any = steps
    return CallGate(speculation, state, ["a", "b"], 4, waste_budget, waiting_max)


def key_at(step: int, digest: str = "d") -> Key:
    return Key(0, FIRST + step, "talk", digest, 0)


def teach(gate: CallGate, wasted: bool, steps: Steps, calls: int = 30) -> None:
    """Let calls of agent 0 be wasted, or not, at steps with the present lag of agent 1."""

    async def learn() -> None:
        for number in range(calls):
            key = key_at(steps.steps[0], f"{wasted} {number}")
            waiting = asyncio.create_task(gate.enter(key))
            await asyncio.sleep(0)
            gate.commit(0, key.step, [] if wasted else ["talk"], 0 if wasted else 1)
            await waiting

    asyncio.run(learn())


async def is_waiting(gate: CallGate, key: Key) -> tuple[bool, asyncio.Task[bool]]:
    task = asyncio.create_task(gate.enter(key))
    await asyncio.sleep(0)
    return not task.done(), task


def test_chances_are_learned_by_function_and_laggards() -> None:
    chances = WasteChances()
    assert chances.chance("talk", ALONE) == pytest.approx(0.3)
    for _ in range(50):
        chances.learn("talk", CROWD, 1.0)
    assert chances.chance("talk", CROWD) > 0.9
    assert chances.chance("talk", ALONE) > 0.8  # not known: as the function's
    assert chances.chance("walk", CROWD) == pytest.approx(0.3)
    for _ in range(50):
        chances.learn("talk", ALONE, 0.0)
    assert chances.chance("talk", ALONE) < 0.1
    assert chances.chance("talk", CROWD) > 0.9


@pytest.mark.parametrize("how", ["promote", "review", {0}, {1}, "commit"], ids=str)
def test_a_call_that_is_mostly_wasted_waits_until_it_is_needed_or_dared(
    how: str | set[int],
) -> None:
    steps = Steps({0: 5, 1: 4})
    gate = gate_of(steps)
    teach(gate, True, steps)
    steps.steps[1] = 5
    teach(gate, False, steps, 60)
    steps.steps[1] = 4

    async def ask() -> None:
        waits, task = await is_waiting(gate, key_at(5))
        assert waits
        gate.review()
        waits, joined = await is_waiting(gate, key_at(5))  # another execution of the step
        assert waits
        if how == "promote":
            gate.promote(0, FIRST + 5)
        elif how == "commit":
            gate.commit(0, FIRST + 5, [], 0)
        else:
            steps.steps[1] = 5
            gate.review({2})  # neither the agent of the call nor one that lagged behind
            await asyncio.sleep(0)
            assert not task.done()
            gate.review(None if how == "review" else how)
        is_needed = how in ("promote", "commit")
        assert await asyncio.gather(task, joined) == [is_needed, is_needed]

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("there", "step", "expected"), [(2, 4, CROWD), (5, 4, ALONE), (2, 5, ALONE)]
)
def test_only_agents_in_sight_that_lag_behind_matter(
    there: float, step: int, expected: Risk
) -> None:
    steps = Steps({0: 5, 1: step})
    gate = gate_of(steps, there=there)
    teach(gate, True, steps)
    assert wasted_by(gate, lambda risk: risk.laggards == expected.laggards) == 30


def wasted_by(gate: CallGate, matches: Callable[[Risk], bool]) -> float:
    learned = gate._chances._wasted.items()
    return sum(wasted for (_, risk), wasted in learned if risk is not None and matches(risk))


@pytest.mark.parametrize(("open_steps", "expected"), [(0, 0), (1, 1), (3, 2), (7, 3), (20, 4)])
def test_own_steps_that_are_not_final_matter(open_steps: int, expected: int) -> None:
    steps = Steps({0: open_steps, 1: open_steps})
    gate = gate_of(steps)
    teach(gate, True, steps, calls=1)
    assert wasted_by(gate, lambda risk: risk.open_class == expected) == 1
    final = Steps({0: open_steps, 1: open_steps})
    gate = gate_of(final)
    for step in range(open_steps):
        gate.commit(0, FIRST + step, [], 0)
    teach(gate, True, final, calls=1)
    assert wasted_by(gate, lambda risk: risk.open_class == 0) == 1


def test_a_call_whose_execution_was_aborted_does_not_disturb_others() -> None:
    steps = Steps({0: 5, 1: 4})
    gate = gate_of(steps)
    teach(gate, True, steps)

    async def ask() -> None:
        waits, task = await is_waiting(gate, key_at(5))
        assert waits
        _, other = await is_waiting(gate, key_at(5))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gate.promote(0, FIRST + 5)
        await other

    asyncio.run(ask())


def test_nothing_is_dared_without_a_budget_or_once_it_is_spent() -> None:
    steps = Steps({0: 5, 1: 5})

    async def waits(gate: CallGate) -> bool:
        waiting, task = await is_waiting(gate, key_at(5))
        task.cancel()
        return waiting

    assert asyncio.run(waits(gate_of(steps, waste_budget=0)))
    gate = gate_of(steps, waste_budget=0.1)
    assert not asyncio.run(waits(gate))
    gate.commit(0, FIRST, ["talk"] * 80, 100)
    assert asyncio.run(waits(gate))
    gate.commit(0, FIRST + 1, ["talk"] * 800, 800)
    assert not asyncio.run(waits(gate))


def test_calls_that_are_not_final_yet_count_by_their_chances() -> None:
    gate = gate_of(Steps({0: 5, 1: 5}), waste_budget=0.1)

    async def ask() -> None:
        tasks = []
        while True:
            waits, task = await is_waiting(gate, key_at(5, f"{len(tasks)}"))
            tasks.append(task)
            if waits:
                break
            assert len(tasks) < 50
        assert len(tasks) > 10
        gate.commit(0, FIRST + 5, ["talk"] * len(tasks), len(tasks))
        waits, _ = await is_waiting(gate, key_at(6))  # none was in vain
        assert not waits
        await asyncio.gather(*tasks)

    asyncio.run(ask())


def test_executions_that_wait_for_one_call_keep_a_thread_each() -> None:
    gate = gate_of(Steps({0: 5, 1: 5}), waste_budget=0, waiting_max=2)

    async def ask() -> None:
        (first_waits, first), (second_waits, _) = [
            await is_waiting(gate, key_at(5)) for _ in range(2)
        ]
        assert (first_waits, second_waits) == (True, True)
        assert not (await is_waiting(gate, key_at(5)))[0]
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert (await is_waiting(gate, key_at(6)))[0]

    asyncio.run(ask())


def test_calls_of_wrong_executions_count_as_wasted() -> None:
    def sent(*, wrong: bool) -> int:
        """Return how many of 40 calls at different steps are sent."""
        gate, count = gate_of(Steps({0: 5, 1: 5}), waste_budget=0.5), 0

        async def ask() -> None:
            nonlocal count
            for step in range(5, 45):
                waits, task = await is_waiting(gate, key_at(step))
                count += not waits
                task.cancel()
                if wrong:
                    gate.was_wrong(0, FIRST + step)

        asyncio.run(ask())
        return count

    assert sent(wrong=False) == 40
    assert sent(wrong=True) < 20


@pytest.mark.parametrize("in_flight", [False, True])
def test_calls_that_others_may_wait_for_pass_when_nothing_happens(
    in_flight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_gate, "STUCK_S", 0.01)
    gate = gate_of(Steps({0: 5, 1: 5}))
    gate.waste_budget = 0.0  # nothing is dared
    gate.progress = lambda: None if in_flight else 7

    async def compute() -> None:
        """What takes longer than any real step, in pieces."""
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            await asyncio.sleep(0)

    async def ask() -> None:
        tasks = [asyncio.create_task(gate.enter(key_at(step))) for step in (6, 5)]
        await compute()
        assert not any(task.done() for task in tasks)
        done, _ = await asyncio.wait(tasks, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        assert done == (set() if in_flight else {tasks[1]})
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(ask())
