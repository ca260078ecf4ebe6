"""Optimistic live runs: what may go wrong ahead of the truth, and never shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.speculation.base import Question
from metropolis.types import MetropolisError, Position
from metropolis.workers.optimistic.digests import Digests
from metropolis.workers.optimistic.minds import Minds
from metropolis.world.base import Agent, World
from metropolis.world.entities import Entity
from metropolis.world.saving import save
from metropolis.world.transaction import Transaction
from metropolis.world.view import View
from tests.runtime.test_simulation import random_meadow
from tests.runtime.walkers import Meadow, Walker, author

STEPS = 12


def run(
    world: World, agents: Sequence[Agent], mode: str = "optimistic", steps: int = STEPS, **how: Any
) -> RunResult:
    instances = VirtualInstances(Scripted(author), SimulatedFleet.uniform("llama-3-8b/l4", 2))
    client = Client(instances, max_tokens=how.pop("max_tokens", None))
    return Simulation(world, agents, client, mode=mode, **how).run(steps)


def walkers(world: Meadow) -> list[Walker]:
    return [Walker(name) for name in world.names]


def test_agents_end_with_the_minds_of_lockstep() -> None:
    minds = []
    for mode in ("lockstep", "optimistic"):
        world = Meadow(7, side=9, joint=1)
        agents = walkers(world)
        run(world, agents, mode, 20, seed=4)
        minds.append([save(agent) for agent in agents])
    assert minds[0] == minds[1]


def test_it_is_faster_than_what_waits_for_everybody_who_could_come_near() -> None:
    makespans = [
        run(world, walkers(world), mode, 40, seed=2, waste_budget=1.0).makespan_s
        for mode in ("out_of_order", "optimistic")
        for world in [Meadow(9, side=24, joint=-1)]
    ]
    assert makespans[1] < 0.95 * makespans[0]


def test_every_call_of_the_history_is_recorded_once_and_wasted_ones_are_counted() -> None:
    world = Meadow(9, side=12)
    result = run(world, walkers(world), steps=30)
    lockstep = run(Meadow(9, side=12), walkers(world), "lockstep", 30)
    for column in ("step", "agent", "function", "prompt_tokens", "output_tokens", "parents"):
        ours, theirs = getattr(result.trace.calls, column), getattr(lockstep.trace.calls, column)
        assert (ours == theirs).all()
    assert result.bought.calls >= result.calls == lockstep.calls


def test_a_run_continues_from_its_checkpoint(tmp_path: Path) -> None:
    whole = run(Meadow(6), walkers(Meadow(6)), "lockstep", 30, seed=3)
    for number, (first, then) in enumerate(
        [("optimistic", "optimistic"), ("optimistic", "out_of_order"), ("lockstep", "optimistic")]
    ):
        out = tmp_path / f"{number}"
        how = {"seed": 3, "out": out, "checkpoint_wall_s": 0.0}
        world = Meadow(6)
        simulation = Simulation(world, walkers(world), Client(Scripted(author)), mode=first, **how)
        steps = simulation.steps(30)
        while next(steps).step < 12:
            pass
        steps.close()
        resumed = run(Meadow(6), walkers(world), then, 30, resume=True, **how)
        assert resumed.history_sha256 == whole.history_sha256


class Road(World):
    """A and B on a line: A stands still, B walks past it once a model has answered."""

    name = "road"
    perception_radius = 2
    max_velocity = 1

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        return [Entity("a", (0, 0), "agent"), Entity("b", (4, 0), "agent")]

    def observe(self, view: View) -> Any:
        return [body.position[0] for body in view.agents()]

    def resolve(self, cluster: Transaction) -> None:
        for member in cluster:
            x, y = member.position
            member.move((x + member.action, y))


@dataclass
class Walks(Agent):
    name: str

    async def proceed(self, observation: Any, llm: Any) -> int:
        await llm.chat(f"{observation}", max_tokens=200)
        return -1


@dataclass
class Watches(Walks):
    async def proceed(self, observation: Any, llm: Any) -> int:
        await llm.chat(f"sees {observation}", max_tokens=20)
        return 0


@dataclass
class Foresees(Walks):
    """Expects to walk by `move` in every step."""

    move: int = -1

    def intent(self, position: Position) -> Iterator[Position]:
        x, y = position
        while True:
            x += self.move
            yield x, y


def test_a_forecast_saves_repetitions_and_a_wrong_one_is_harmless() -> None:
    expected = run(Road(), [Watches("a"), Walks("b")], "lockstep")
    calls = {}
    for name, walker in {
        "none": Walks("b"),
        "right": Foresees("b"),
        "wrong": Foresees("b", move=1),
    }.items():
        result = run(Road(), [Watches("a"), walker], waste_budget=1.0)
        assert result.history_sha256 == expected.history_sha256
        calls[name] = result.bought.calls
    assert calls["right"] == expected.calls < calls["none"]
    assert calls["wrong"] > expected.calls


@dataclass
class Expects(Agent):
    """Raises `error` if B is not where it must be."""

    name: str
    error: Callable[[str], BaseException]
    seen: list[Any] = field(default_factory=list)

    async def proceed(self, observation: Any, llm: Any) -> int:
        expected = [4 - self.step] if 2 <= self.step <= 6 else []
        if observation != expected:
            raise self.error(f"{observation} at step {self.step}")
        self.seen.append(observation)
        return 0

    def save(self) -> Any:
        return self.seen

    def restore(self, saved: Any) -> None:
        self.seen = saved


@pytest.mark.parametrize("error", [ValueError, MetropolisError, SystemExit])
def test_errors_due_to_wrong_predictions_are_not_shown(error: Any) -> None:
    agent = Expects("a", error)
    result = run(Road(), [agent, Walks("b")])
    assert result.steps == STEPS
    assert agent.seen[:4] == [[], [], [2], [1]]


def test_errors_of_the_truth_end_the_run() -> None:
    @dataclass
    class Fails(Walks):
        async def proceed(self, observation: Any, llm: Any) -> int:
            if self.step == 5:
                raise ValueError("enough")
            return await super().proceed(observation, llm)

    with pytest.raises(ValueError, match="enough") as raised:
        run(Road(), [Expects("a", ValueError), Fails("b")])
    assert "step 5, agent 'b'" in f"{raised.value.__notes__}"


def test_a_task_that_cancels_itself_is_told_of() -> None:
    @dataclass
    class Cancels(Walks):
        async def proceed(self, observation: Any, llm: Any) -> int:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
            return 0

    with pytest.raises(MetropolisError, match="cancelled from within"):
        run(Road(), [Walks("a"), Cancels("b")])


def test_a_budget_ends_the_run() -> None:
    result = run(Road(), [Walks("a"), Walks("b")], max_tokens=500, steps=60)
    assert result.steps < 60
    assert "budget" in f"{result.stopped}"


def test_agents_must_be_plain_data() -> None:
    @dataclass
    class Holds(Walks):
        task: Any = field(default_factory=lambda: object())

    with pytest.raises(MetropolisError, match="cannot be saved"):
        run(Road(), [Walks("a"), Holds("b")])


def test_more_workers_are_refused() -> None:
    with pytest.raises(MetropolisError, match="one worker in this process: make it 1, let agents"):
        run(Road(), [Walks("a"), Walks("b")], workers=2)


# --- planted faults: each must be caught by the comparison with lockstep


def blind_to(kind: str, patch: pytest.MonkeyPatch) -> None:
    true = Digests.reads
    patch.setattr(
        Digests,
        "reads",
        lambda self, view, **how: [r for r in true(self, view, **how) if r[0].kind != kind],
    )


def looks_too_near(patch: pytest.MonkeyPatch) -> None:
    """Reads are recorded with half of their radius."""
    true = Digests.reads

    def halved(asked: Question, answer: Any) -> tuple[Question, Any]:
        if asked.kind != "entities":
            return asked, answer
        radius, (x, y) = asked.radius / 2, asked.centre
        near = [
            (name, value)
            for name, value in answer
            if max(abs(value.position[0] - x), abs(value.position[1] - y)) <= radius
        ]
        return asked._replace(radius=radius), tuple(near)

    patch.setattr(
        Digests, "reads", lambda self, view, **how: [halved(*r) for r in true(self, view, **how)]
    )


def forgets_who_was_absent(patch: pytest.MonkeyPatch) -> None:
    """A search that found no other agent is not recorded."""
    true = Digests.reads

    def others(answer: Any) -> bool:
        return not isinstance(answer, tuple) or len(answer) > 1

    patch.setattr(
        Digests,
        "reads",
        lambda self, view, **how: [r for r in true(self, view, **how) if others(r[1])],
    )


def compares_positions_only(patch: pytest.MonkeyPatch) -> None:
    true = Digests.value
    patch.setattr(Digests, "value", lambda self, entity: true(self, entity)._replace(digest=0))


def undoes_no_mind(patch: pytest.MonkeyPatch) -> None:
    """An agent goes on with the mind of the execution that was wrong."""
    true, latest = Minds.take, {}

    def take(self: Any, number: int, mind: Any, step: Any = None) -> Any:
        agent = true(self, number, mind, step)
        last = latest.setdefault((id(self), number), agent)
        last.step, last._drawn_at, last._seed = agent.step, agent._drawn_at, agent._seed
        if hasattr(agent, "_random"):
            last._random = agent._random
        return last

    patch.setattr(Minds, "take", take)


@pytest.mark.parametrize(
    "plant",
    [
        partial(blind_to, "entities"),
        partial(blind_to, "events"),
        looks_too_near,
        forgets_who_was_absent,
        compares_positions_only,
        undoes_no_mind,
    ],
    ids=lambda plant: getattr(plant, "__name__", "blind"),
)
def test_planted_faults_are_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(40):
        world = random_meadow(seed, "chebyshev")
        exact = run(world, walkers(world), "lockstep", seed=seed)
        world = random_meadow(seed, "chebyshev")
        with monkeypatch.context() as patch:
            plant(patch)
            planted = run(world, walkers(world), seed=seed)
        if planted.history != exact.history:
            return
    pytest.fail("no world of 40 has another history")


def test_a_budget_bounds_the_wasted_calls() -> None:
    wasted = {}
    for budget in (0.0, 0.1, 1.0):
        world = Meadow(9, side=12)
        result = run(world, walkers(world), steps=60, waste_budget=budget)
        wasted[budget] = 1 - result.calls / result.bought.calls
    assert wasted[0.0] == 0
    assert wasted[0.1] < 0.13 < wasted[1.0], wasted


@pytest.mark.parametrize("budget", [-0.1, 1.5, float("nan"), "much"])
def test_a_wrong_budget_is_refused(budget: Any) -> None:
    with pytest.raises(MetropolisError, match="waste_budget is"):
        run(Road(), [Walks("a"), Walks("b")], waste_budget=budget)
