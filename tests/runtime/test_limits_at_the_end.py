"""The end of a run whose calls wait for a limit, a pause or a thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from metropolis import Agent, Client, Entity, Simulation, World
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, Request
from metropolis.runtime.live.result import RunResult

MODES = ["lockstep", "out_of_order", "optimistic"]


class Far(World):
    """Agents that never meet."""

    name = "far"
    perception_radius = max_velocity = 1

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        return [Entity(f"a{i}", (i * 20, 0), "agent") for i in range(9)]

    def observe(self, view: Any) -> Any:
        return None

    def resolve(self, cluster: Any) -> None:
        pass


@dataclass
class Asks(Agent):
    name: str

    async def proceed(self, observation: Any, llm: Any) -> Any:
        await llm.chat("x")
        return 1


class Counting(Scripted):
    sent = 0

    async def complete(self, request: Request) -> Completion:
        self.sent += 1
        return await super().complete(request)


@pytest.mark.parametrize("mode", MODES)
def test_an_interrupted_run_sends_no_call_that_waited_for_a_limit(mode: str) -> None:
    backend = Counting()
    client = Client(backend, requests_per_minute=5, max_tokens=10**6)
    agents = [Asks(f"a{i}") for i in range(9)]
    simulation = Simulation(Far(), agents, client, mode=mode)
    threading.Timer(0.5, simulation.interrupt).start()
    result = simulation.run(5)
    assert result.stopped
    assert backend.sent == 5
    assert result.bought.lost_tokens == 0


@pytest.mark.parametrize("mode", MODES)
def test_an_interrupted_pause_sends_no_call(mode: str) -> None:
    backend = Counting()
    agents = [Asks(f"a{i}") for i in range(9)]
    simulation = Simulation(Far(), agents, Client(backend, max_tokens=10**6), mode=mode)
    simulation.control.pause()
    threading.Timer(0.5, simulation.interrupt).start()
    result = simulation.run(5)
    assert result.stopped
    assert backend.sent == result.bought.lost_tokens == 0


class Slow(Scripted):
    async def complete(self, request: Request) -> Completion:
        await asyncio.sleep(60)
        return await super().complete(request)


@pytest.mark.parametrize(
    "how", [{"mode": "lockstep"}, {"mode": "optimistic"}, {"store": "embedded", "workers": 2}]
)
def test_calls_that_an_interruption_cancels_stay_in_the_budget(
    how: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "it"

    def run(backend: Scripted) -> tuple[Client, RunResult]:
        client, agents = Client(backend, max_tokens=10**6), [Asks(f"a{i}") for i in range(9)]
        resume = (out / "run.json").exists()
        simulation = Simulation(Far(), agents, client, out=out, resume=resume, **how)
        if isinstance(backend, Slow):
            threading.Timer(1.0, simulation.interrupt).start()
        return client, simulation.run(5)

    lost = 0
    for _ in range(2):
        _, stopped = run(Slow())
        assert stopped.bought.calls == 0
        assert stopped.bought.lost_tokens > lost
        lost = stopped.bought.lost_tokens
    client, whole = run(Scripted())
    bought = whole.bought
    assert (bought.calls, bought.lost_tokens) == (45, lost)
    assert client.gate.token_budget.spent == bought.prompt_tokens + bought.output_tokens + lost


class Cancelling(Far):
    def observe(self, view: Any) -> Any:
        if view.step == 3 and view.name == "a1":
            raise asyncio.CancelledError


@pytest.mark.parametrize("mode", MODES)
def test_plain_code_that_raises_cancelled_error_ends_the_run(mode: str) -> None:
    agents = [Asks(f"a{i}") for i in range(9)]
    simulation = Simulation(Cancelling(), agents, mode=mode)
    with pytest.raises(Exception, match=r"step 3, agent 'a1'.*a task was cancelled from within"):
        simulation.run(8)


LEAVES_A_STREAM = """
from dataclasses import dataclass
from metropolis import Agent, Entity, Simulation, World

class Couple(World):
    name = "couple"
    perception_radius, max_velocity = 3, 1

    def reset(self, *, seed, options):
        return [Entity(name, (i, 0), "agent") for i, name in enumerate("ab")]

    def observe(self, view):
        return None

    async def resolve(self, cluster):
        if "a" in cluster and "b" in cluster:
            try:
                cluster["a"].write(heard=await cluster["a"].ask("b", "well?"))
            except ValueError:
                cluster["a"].write(heard="nothing")

@dataclass
class Plain(Agent):
    name: str

    def proceed(self, observation, llm):
        return None

    def answer(self, question, llm):
        pieces = llm.stream("tell me")
        for piece in pieces:
            raise ValueError("not what I wanted")

result = Simulation(Couple(), [Plain("a"), Plain("b")], mode="MODE").run(20)
print(result.steps, result.calls)
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_plain_agent_may_raise_within_a_stream(mode: str) -> None:
    code = textwrap.dedent(LEAVES_A_STREAM).replace("MODE", mode)  # a process: it used to hang
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "20 20\n", done.stderr
