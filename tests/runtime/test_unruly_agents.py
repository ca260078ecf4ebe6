"""Agents that start tasks and threads, modify returned actions, and catch every error."""

from __future__ import annotations

import asyncio
import gc
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from metropolis.llm import Client, LLMError
from metropolis.llm.backends.scripted import Scripted
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.types import MetropolisError
from metropolis.world.base import Agent, World
from metropolis.world.entities import Entity
from metropolis.world.transaction import Transaction
from metropolis.world.user_errors import explanation_of
from metropolis.world.view import View
from tests.runtime.purchases import leave

PROFILE = "llama-3-8b/l4"


class Line(World):
    """Agents `apart` from one another, and nothing else."""

    name = "line"
    perception_radius = 1
    max_velocity = 1

    def __init__(self, agents: int, apart: int = 0) -> None:
        self.names, self.apart = [f"a{i}" for i in range(agents)], apart

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        return [Entity(n, (self.apart * i, 0), "agent") for i, n in enumerate(self.names)]

    def observe(self, view: View) -> Any:
        return view.step

    async def resolve(self, cluster: Transaction) -> None:
        pass


@dataclass
class Thinker(Agent):
    name: str
    memory: list[Any] = field(default_factory=list)


def run(world: Line, agent: Callable[[str], Agent], steps: int = 4, **how: Any) -> RunResult:
    backend = VirtualInstances(
        Scripted(lambda request, draw: "yes"), SimulatedFleet.uniform(PROFILE, 1)
    )
    client = Client(backend, max_tokens=how.pop("max_tokens", None))
    return Simulation(world, [agent(name) for name in world.names], client, **how).run(steps)


class Plain(Thinker):
    def proceed(self, observation: Any, llm: Any) -> Any:
        return llm.chat(f"{self.name} {observation}").text

    def answer(self, question: Any, llm: Any) -> Any:
        return llm.chat(question).text


def test_a_plain_agent_may_call_from_threads_of_its_own() -> None:
    class Parallel(Thinker):
        def proceed(self, observation: Any, llm: Any) -> Any:
            with ThreadPoolExecutor(2) as threads:
                return [c.text for c in threads.map(llm.chat, ["one", "two"])]

    assert run(Line(1), Parallel).calls == 8


def test_more_plain_agents_than_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metropolis.workers.local.THREADS_MAX", 2)
    assert run(Line(5, 100), Plain).calls == 20


def test_more_questions_at_once_than_threads() -> None:
    class Curious(Line):
        async def resolve(self, cluster: Transaction) -> None:
            asking = cluster["a0"]
            await asyncio.gather(*[asking.ask("a1", f"{i}?") for i in range(4)])

    assert run(Curious(2), Plain, 2).calls == 2 * (2 + 4)


def test_history_keeps_actions_as_they_were() -> None:
    class Hoarder(Thinker):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            self.memory.append({"seen": [observation]})
            for known in self.memory:
                known["seen"].append(self.step)
            return {"memory": self.memory, "last": (self.memory[-1],)}

    far, near = run(Line(3, 100), Hoarder), run(Line(3, 100), Hoarder, mode="lockstep")
    assert far.history == near.history
    assert far.history_sha256 == near.history_sha256
    first = {"seen": [0, 0]}
    assert far.history[0].actions["a0"] == {"memory": [first], "last": (first,)}


def test_a_cancelled_task_is_told_of() -> None:
    class Impatient(Thinker):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            asking = asyncio.create_task(llm.chat("well?"))
            await asyncio.sleep(0)
            asking.cancel()
            await asking

    with pytest.raises(MetropolisError, match=r"step 0, agent 'a0'.* was cancelled from within"):
        run(Line(2, 100), Impatient)


@pytest.mark.parametrize("mode", ["lockstep", "out_of_order", "optimistic"])
def test_an_agent_that_cancels_itself_is_named(mode: str) -> None:
    class Ends(Thinker):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            if self.name == "a1" and (task := asyncio.current_task()) is not None:
                task.cancel()
            await llm.chat(f"{observation}")

    with pytest.raises(MetropolisError, match=r"step 0, agent 'a1'.* was cancelled from within"):
        run(Line(3), Ends, mode=mode)


class Grouped(Thinker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        async with asyncio.TaskGroup() as group:
            for number in range(2):
                group.create_task(llm.chat(f"{observation} {number}"))


class Careless(Thinker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        try:
            return (await llm.chat(f"{observation}")).text
        except LLMError:
            return "whatever"


@pytest.mark.parametrize("agent", [Grouped, Careless])
def test_a_budget_ends_the_run_whatever_agents_do_with_the_error(agent: Any) -> None:
    whole = run(Line(2, 100), agent, 8)
    part = run(Line(2, 100), agent, 8, max_tokens=310)
    assert "the budget is exhausted" in str(part.stopped)
    assert 0 < part.steps < 8
    assert part.history == whole.history[: part.steps]


def test_of_a_task_group_of_errors_for_users_the_first_is_raised() -> None:
    class Unclear(Thinker):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            async with asyncio.TaskGroup() as group:
                group.create_task(llm.chat([]))
                group.create_task(llm.chat([]))

    with pytest.raises(MetropolisError, match="a chat has no messages"):
        run(Line(1), Unclear)

    async def fail() -> None:
        raise TypeError("a mistake of the author")

    class Faulty(Thinker):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            async with asyncio.TaskGroup() as group:
                group.create_task(llm.chat([]))
                group.create_task(fail())

    with pytest.raises(ExceptionGroup):
        run(Line(1), Faulty)


def test_nothing_goes_on_once_a_run_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """Turns that end while the run stops start no others: asyncio would warn about these."""

    class Quick(Thinker):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            try:
                for _ in range(self.random.randrange(4)):
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                return  # ends its turn normally

    world = Line(5, 100)
    for seed in range(20):
        leave(Simulation(world, [Quick(name) for name in world.names], seed=seed), 50, seed)
    gc.collect()
    assert not caplog.records


class Keeper(Thinker):
    """Calls the model of step 0 in every step."""

    _kept: Any = None

    async def proceed(self, observation: Any, llm: Any) -> Any:
        self._kept = self._kept or llm
        return (await self._kept.chat(f"{observation}")).text


class Answering(Thinker):
    """Calls the model of `proceed` in `answer`."""

    _kept: Any = None

    async def proceed(self, observation: Any, llm: Any) -> Any:
        self._kept = llm

    async def answer(self, question: Any, llm: Any) -> Any:
        return (await self._kept.chat(question)).text


class PlainKeeper(Thinker):
    _kept: Any = None

    def proceed(self, observation: Any, llm: Any) -> Any:
        self._kept = self._kept or llm
        return self._kept.chat(f"{observation}").text


class Asking(Line):
    joint_radius = 1

    async def resolve(self, cluster: Transaction) -> None:
        for member in cluster:
            await member.ask(member.name, "how are you?")


@pytest.mark.parametrize("mode", ["lockstep", "out_of_order", "optimistic"])
@pytest.mark.parametrize(
    ("world", "agent", "place"),
    [
        (Line, Keeper, "step 1, agent 'a0', in Keeper.proceed"),
        (Line, PlainKeeper, "step 1, agent 'a0', in PlainKeeper.proceed"),
        (Asking, Answering, "step 0, agent 'a0', in Answering.answer"),
    ],
)
def test_a_kept_llm_is_refused(
    mode: str, world: type[Line], agent: type[Thinker], place: str
) -> None:
    """Calls through an `llm` kept from an earlier step would be bought but not recorded."""
    with pytest.raises(MetropolisError, match=f"{place}: .*is called too late: .*keep no llm"):
        run(world(1), agent, mode=mode)


def test_a_call_that_is_left_behind_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    class Leaver(Thinker):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            asyncio.ensure_future(llm.chat("well?"))  # noqa: RUF006

    run(Line(1), Leaver, 1)
    gc.collect()
    sentence = (
        "metropolis: a task that nothing waited for failed: .*llm.chat\\(\\) of 'a0' at step 0 .*\n"
    )
    assert re.fullmatch(sentence, capsys.readouterr().err)


class Untold(Exception):  # noqa: N818
    def __str__(self) -> str:
        return f"{1 / 0}"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ExceptionGroup("two", [ValueError("a"), KeyError("b")]), "ValueError: a"),
        (Untold(), "Untold: its __str__ raises ZeroDivisionError"),
    ],
)
def test_unusual_errors_have_a_sentence(error: Exception, told: str) -> None:
    class Raises(Thinker):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            raise error

    line = Raises.proceed.__code__.co_firstlineno + 1
    with pytest.raises(type(error)) as raised:
        run(Line(1), Raises)
    sentence = f"step 0, agent 'a0', in {Raises.proceed.__qualname__}: {__file__}:{line}: {told}; "
    assert (explanation_of(raised.value) or "").startswith(sentence)


@pytest.mark.parametrize("mode", ["sequential", "lockstep", "out_of_order"])
def test_an_error_of_one_cluster_ends_the_others_in_silence(mode: str) -> None:
    class Fails(Line):
        async def resolve(self, cluster: Transaction) -> None:
            if "a0" in cluster:
                raise ValueError("broken")

    class Steady(Thinker):
        def routine(self, observation: Any) -> Any:
            return 0

        async def proceed(self, observation: Any, llm: Any) -> Any:
            return 0

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="broken"):
            run(Fails(3, 100), Steady, mode=mode)
        gc.collect()
    assert not warned
