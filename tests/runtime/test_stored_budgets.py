"""Budgets of runs in a store: stopped runs resume, and no worker gets its share twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import BudgetExhausted, Completion
from metropolis.llm.client import Client
from metropolis.llm.journal import Key
from metropolis.runtime.live.simulation import Simulation
from metropolis.store.memory import MemoryServer
from metropolis.workers.invocations import Invocations
from metropolis.workers.worker_spec import WorkerSpec
from tests.runtime.walkers import Meadow, Walker, author, choose
from tests.store.lines import begin

STEPS = 12


class Stubborn(Walker):
    """Continues when the budget is exhausted."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        try:
            return await super().proceed(observation, llm)
        except BudgetExhausted:
            return choose(self, observation)


def simulation(max_tokens: int | None, **how: Any) -> Simulation:
    world = Meadow(6, side=9, joint=1)
    client = Client(Scripted(author), max_tokens=max_tokens)
    return Simulation(world, [Stubborn(name) for name in world.names], client, seed=5, **how)


def test_nobody_goes_on_without_an_answer(tmp_path: Path) -> None:
    whole = simulation(None).run(STEPS)
    out = tmp_path / "it"
    for tokens in (1000, 2000, None):
        where = {"resume": True} if out.exists() else {"store": "embedded"}
        result = simulation(tokens, out=out, **where).run(STEPS)
        assert (result.stopped is None) == (tokens is None)
    assert result.history_sha256 == whole.history_sha256


def test_a_worker_that_replaces_another_has_the_rest_of_its_share() -> None:
    store = MemoryServer().store("it")
    begin(store, 2)
    for buyer, tokens in (("crew:0", 70), ("crew:1", 150), ("crew:1", 25)):
        store.keep_answer(Key(0, 0, "plan", "", 0), Completion("", tokens, 5, "stop"), buyer)
    world = Meadow(2)
    agents = [Walker(name) for name in world.names]
    client = Client(Scripted(author), max_tokens=1000)
    job = WorkerSpec(
        world, list(agents), client, 0, 0.0, False, False, 10.0, Invocations(), 0.0
    ).shipped(2)
    job.worker("another", store, "crew:1")
    assert job.client.gate.token_budget.left == 500 - 185
