"""Optimistic runs of unusual agents: threads, streams, odd intents, state beyond plain data."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import metropolis.workers.local as local
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.runtime.live.optimistic import waste_budget_of
from metropolis.runtime.live.simulation import Simulation
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.types import MetropolisError, Position
from metropolis.world.base import Agent, World
from metropolis.world.entities import Entity
from metropolis.world.transaction import Transaction
from metropolis.world.view import View
from tests.runtime.test_optimistic import Expects, Road, Walks, run
from tests.runtime.walkers import Meadow, PlainWalker, Walker, choose


@dataclass
class Asks(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        for i in range(4):
            await llm.chat(f"{i} {observation}", function="think", max_tokens=40)
        return choose(self, observation)


@dataclass
class PlainlyAsks(PlainWalker):
    def proceed(self, observation: Any, llm: Any) -> Any:
        for i in range(4):
            llm.chat(f"{i} {observation}", function="think", max_tokens=40)
        return choose(self, observation)


@dataclass
class Streams(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        for i in range(4):
            async for _ in llm.stream(f"{i} {observation}", function="think", max_tokens=40):
                pass
        return choose(self, observation)


def wasted(kind: Any, budget: float) -> float:
    world = Meadow(7, side=12)
    result = run(world, [kind(name) for name in world.names], steps=20, waste_budget=budget)
    return 1 - result.calls / result.bought.calls


def test_threads_of_aborted_steps_send_nothing_more() -> None:
    assert wasted(PlainlyAsks, 0.15) < 0.16
    assert abs(wasted(PlainlyAsks, 1.0) - wasted(Asks, 1.0)) < 0.03


def test_the_budget_counts_streams() -> None:
    assert wasted(Streams, 0.01) < 0.04


def check_that_it_ends(go: Callable[[], object]) -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(go()), daemon=True)
    thread.start()
    thread.join(15)
    assert results, "the run hangs"


def test_more_plain_agents_than_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "THREADS_MAX", 2)
    world = Meadow(9, side=12)
    agents = [PlainWalker(name) for name in world.names]
    check_that_it_ends(lambda: run(world, agents, steps=30, waste_budget=0.15))


class Interview(World):
    """In every step, b is asked many questions at once; c, who stands out of its sight, one."""

    perception_radius, max_velocity, joint_radius = 4, 1, 1

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        places: Mapping[str, Position] = {"a": (0, 0), "b": (0, 1), "c": (6, 0)}
        return [Entity(name, place, "agent") for name, place in places.items()]

    def observe(self, view: View) -> Any:
        return view.name

    async def resolve(self, cluster: Transaction) -> None:
        asked, questions = ("b", 40) if "b" in cluster else ("c", 1)
        await asyncio.gather(*[cluster[asked].ask(asked, number) for number in range(questions)])


@dataclass
class Guest(Agent):
    """Only c needs a model to decide, and lags behind."""

    name: str

    def proceed(self, observation: Any, llm: Any) -> Any:
        for number in range(100 if observation == "c" else 0):
            llm.chat(f"{number}", max_tokens=10)

    def answer(self, question: Any, llm: Any) -> Any:
        return llm.chat(f"{question}", max_tokens=10).text


def test_answers_that_wait_leave_a_thread_to_those_that_lag_behind() -> None:
    guests = [Guest(name) for name in "abc"]
    check_that_it_ends(lambda: run(Interview(), guests, steps=6, waste_budget=1e-6))


@dataclass
class Counts(Walks):
    seen: dict = field(default_factory=dict)  # type: ignore[type-arg]  # no type of its keys

    async def proceed(self, observation: Any, llm: Any) -> int:
        await llm.chat(f"{observation}", max_tokens=20)
        self.seen[len(observation)] = True
        return len(self.seen) % 2


def test_a_mind_that_its_saved_state_does_not_hold_is_refused() -> None:
    with pytest.raises(
        MetropolisError, match=r"the field 'seen' of the agent 'a' .* would be restored"
    ):
        run(Road(), [Counts("a"), Walks("b")], waste_budget=1.0)


def test_ctrl_c_in_a_step_that_runs_ahead_ends_the_run() -> None:
    pressed = []

    @dataclass
    class Interrupted(Expects):
        async def proceed(self, observation: Any, llm: Any) -> int:
            expected = [4 - self.step] if 2 <= self.step <= 6 else []
            if observation != expected and not pressed:
                pressed.append(self.step)
                signal.raise_signal(signal.SIGINT)
            return 0

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            run(Road(), [Interrupted("a", ValueError), Walks("b")], waste_budget=1.0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert pressed


@dataclass
class Locks(Walks):
    _lock: Any = field(default_factory=threading.Lock, repr=False)


def test_an_agent_that_cannot_be_copied_is_refused() -> None:
    refusal = r"the agent 'a' \(Locks\) cannot be copied \(.*lock.*\); all its fields"
    with pytest.raises(MetropolisError, match=refusal):
        run(Road(), [Locks("a"), Walks("b")])


@pytest.mark.parametrize("way", [None, (1, 2, 3), (float("nan"), 0.0)])
def test_a_wrong_intent_names_its_agent(way: Any) -> None:
    @dataclass
    class Odd(Walks):
        def intent(self, position: Any) -> Any:
            return [way]

    with pytest.raises((MetropolisError, TypeError)) as caught:
        run(Road(), [Walks("a"), Odd("b")])
    assert "agent 'b'" in f"{caught.value}{getattr(caught.value, '__notes__', '')}"


@pytest.mark.parametrize(
    ("url", "is_external"),
    [
        ("http://127.0.0.1:8000", False),
        ("http://10.1.2.3:8000", False),
        ("http://[::1]:8000", False),
        ("http://gpu-7:8000", False),
        ("http://llm.internal", False),
        ("https://api.example.com/v1", True),
        ("http://8.8.8.8", True),
    ],
)
def test_nothing_runs_ahead_by_default_before_a_server_on_the_internet(
    url: str, is_external: bool
) -> None:
    assert Compatible(url).is_external is is_external
    assert not Compatible(url, vllm=True).is_external
    assert waste_budget_of(None, Client(Compatible(url))) == (0 if is_external else 0.2)
    assert waste_budget_of(0.3, Client(Compatible(url))) == 0.3


def test_state_beside_the_fields_is_refused() -> None:
    @dataclass
    class Sets(Walks):
        async def proceed(self, observation: Any, llm: Any) -> int:
            self.extra = self.step
            return 0

    with pytest.raises(MetropolisError, match=r"agent 'a' .* has set 'extra', which is not one"):
        run(Road(), [Sets("a"), Walks("b")], waste_budget=1.0)


def test_an_intent_that_changes_its_agent_is_refused() -> None:
    @dataclass
    class Mutates(Walks):
        looked: int = 0

        def intent(self, position: Any) -> Any:
            self.looked += 1
            return []

    with pytest.raises(MetropolisError, match=r"agent 'b' .*its intent\(\) changes it"):
        run(Road(), [Walks("a"), Mutates("b")], waste_budget=1.0)


@dataclass
class Draws(Walker):
    """Draws in its intent, and in the answers that may follow in the same step."""

    def intent(self, position: Any) -> Any:
        self.random.random()
        return []

    async def answer(self, question: Any, llm: Any) -> Any:
        said = await super().answer(question, llm)
        return f"{said} {self.random.random()}"


@pytest.mark.parametrize("seed", range(4))
def test_draws_in_an_intent_change_nothing(seed: int) -> None:
    histories = set()
    for mode, how in (("lockstep", {}), ("optimistic", {"waste_budget": 1.0})):
        world = Meadow(6, side=7, joint=2)
        agents = [Draws(name) for name in world.names]
        histories.add(run(world, agents, mode, 25, seed=seed, **how).history_sha256)
    assert len(histories) == 1


class Crossing(World):
    name: str = "crossing"
    perception_radius: float = 3
    max_velocity: float = 1

    def reset(self, *, seed: int, options: Any) -> list[Entity]:
        return [Entity(name, (2 * i, 0), "agent") for i, name in enumerate("abcd")]

    def observe(self, view: Any) -> Any:
        return [body.position for body in view.agents()]

    def resolve(self, cluster: Any) -> None:
        for member in cluster:
            way = member.action if member.agents(1) else -member.action
            member.move((member.position[0] + way, 0))


@dataclass
class Collects(Agent):
    """Its set yields 9 before 16, and once restored 16 before 9."""

    name: str
    seen: set[int] = field(default_factory=set)

    async def proceed(self, observation: Any, llm: Any) -> Any:
        self.seen.update(range(20))
        self.seen -= {*range(20)} - {9, 16}
        await llm.chat(f"{observation} {sorted(self.seen)}")
        return self.random.choice((-1, 0, 1))


def test_an_intent_does_not_answer_for_the_order_of_a_set() -> None:
    def ran(**how: Any) -> str:
        fleet = SimulatedFleet.uniform("llama-3-8b/l4", 1)
        llm = VirtualInstances(Scripted(lambda _, draw: "x " * draw.randrange(1, 99)), fleet)
        agents = [Collects(name) for name in "abcd"]
        return Simulation(Crossing(), agents, llm, **how).run(30).history_sha256

    assert ran(mode="optimistic", waste_budget=1.0) == ran(mode="lockstep")
