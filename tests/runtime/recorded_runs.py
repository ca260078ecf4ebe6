"""Small runs in lockstep, with all that their agents read and did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.runtime.live.recorded_dependencies import RecordedDependencies
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.store.execution import Execution
from metropolis.trace.schema import ValueDependencies
from metropolis.world.entities import Entity
from metropolis.world.state import State
from metropolis.world.transaction import Transaction
from tests.runtime.test_simulation import random_meadow
from tests.runtime.walkers import Meadow, Walker, author

Row = tuple[int, int]
"""(agent, step)"""
Rows = frozenset[Row]
STEPS = 8
FLEET = SimulatedFleet.uniform("llama-3-8b/l4", 2)


class Steady(Walker):
    """A walker that often stays where it is, and so changes nothing."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        action = await super().proceed(observation, llm)
        draw = Random(f"{observation} {self.name}")
        return action if draw.random() < 0.3 else action | {"move": None, "shout": "", "eat": False}


class SteadyMeadow(Meadow):
    """A meadow with events that nobody observes, too."""

    async def resolve(self, cluster: Transaction) -> None:
        await super().resolve(cluster)
        for member in cluster:
            if len(member.action["shout"] or "steady") % 2 == 0 and member.step % 3 == 0:
                member.emit("thought", about=member.step)

    def step_from(self, position: Any, move: Any) -> Any:
        return position if move is None else super().step_from(position, move)


def run(world: Meadow, mode: str = "lockstep", steps: int = STEPS, **how: Any) -> RunResult:
    client = Client(VirtualInstances(Scripted(author), FLEET))
    agents = [Steady(name) for name in world.names]
    rule = {"rule": mode} if mode in ("conservative", "versioned") else {}
    mode = "out_of_order" if rule else mode
    return Simulation(world, agents, client, mode=mode, **rule, **how).run(steps)


def steady(seed: int) -> Meadow:
    """A random world of few agents who meet often."""
    world = random_meadow(seed, "chebyshev")
    world.__class__ = SteadyMeadow
    world.names = world.names[:5]
    return world


@dataclass
class Ran:
    """A run in lockstep, with all that its agents read and did."""

    world: Meadow
    seed: int
    entities: Sequence[Entity]
    executions: list[list[Execution]]
    recorded: ValueDependencies

    def __init__(self, seed: int) -> None:
        self.world, self.seed, self.executions = steady(seed), seed, []
        self.entities = self.world.reset(seed=seed, options={})
        self.ids = {name: i for i, name in enumerate(self.world.names)}
        with observed(self.executions):
            found = run(self.world, seed=seed).trace.dependencies
        assert found is not None
        self.recorded = found

    def closures(self) -> dict[Row, Rows]:
        """What every agent-step depends on, directly and not, as recorded."""
        found: dict[Row, Rows] = {}
        agents = len(self.ids)
        for step in range(STEPS):
            for agent in range(agents):
                row = step * agents + agent
                listed = slice(self.recorded.offsets[row], self.recorded.offsets[row + 1])
                needs = [
                    (int(writer), step - int(ago))
                    for writer, ago in zip(
                        self.recorded.writer[listed], self.recorded.ago[listed], strict=True
                    )
                ]
                needs += [(agent, step - 1)] if step else []
                found[agent, step] = frozenset(needs).union(*(found[need] for need in needs))
        return found


@contextmanager
def observed(executions: list[list[Execution]]) -> Iterator[None]:
    true = RecordedDependencies.add

    def add(self: RecordedDependencies, step: int, of: Sequence[Execution]) -> None:
        executions.append(list(of))
        true(self, step, of)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordedDependencies, "add", add)
        yield


def resolved(ran: Ran, state: State, step: int, names: Sequence[str]) -> Transaction | None:
    """What the world makes of the actions of `names`; None: it asks an agent."""

    async def ask(_name: str, _question: Any) -> Any:
        raise LookupError

    (execution,) = ran.executions[step]
    actions = {name: execution.actions[name] for name in names}
    cluster = Transaction(state, ran.world.reach, ran.seed, step, actions, ask)
    try:
        ran.world.resolve(cluster).send(None)
    except StopIteration:
        return cluster
    except LookupError:
        return None
    raise AssertionError
