"""The event loop of a run after Ctrl-C, or after its reader has left."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from metropolis import Client, Simulation
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Request
from metropolis.runtime.live import simulation as simulation_module
from metropolis.runtime.live.event_loop import event_loop
from metropolis.workers.invocations import Invocations
from tests.runtime.test_running_ahead import Field, Slow, Walker
from tests.runtime.test_unruly_agents import Line, Thinker, run


def author(_request: Request, _draw: Random) -> str:
    return "yes"


class Thinks(Thinker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        return (await llm.chat(f"{observation}")).text


@pytest.mark.parametrize("presses", [1, 2])
@pytest.mark.parametrize("mode", ["lockstep", "out_of_order", "optimistic"])
def test_ctrl_c_in_a_task_of_an_agent_ends_the_run_in_order(
    tmp_path: Path, mode: str, presses: int, capsys: pytest.CaptureFixture[str]
) -> None:
    left = [signal.SIGINT] * presses

    class Busy(Thinker):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            async def think(of: str) -> str:
                while self.name == "a1" and self.step == 2 and left:
                    signal.raise_signal(left.pop())
                return str((await llm.chat(f"{observation} {of}")).text)

            return await asyncio.gather(think("one"), think("two"))

    how: dict[str, Any] = {"mode": mode, "out": tmp_path / "it"}
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        run(Line(3), Busy, **how)
    for thread in set(threading.enumerate()) - before:
        thread.join(10.0)
        assert not thread.is_alive()
    found = run(Line(3), Busy, resume=True, **how)
    assert found.history_sha256 == run(Line(3), Busy).history_sha256
    gc.collect()
    assert not capsys.readouterr().err


@pytest.mark.parametrize("mode", ["out_of_order", "optimistic"])
def test_a_step_that_goes_on_after_the_second_ctrl_c_is_not_committed(
    tmp_path: Path, mode: str
) -> None:
    left = [signal.SIGINT] * 2

    class GoesOn(Thinker):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            async def think() -> str:
                while self.name == "a1" and self.step == 2 and left:
                    signal.raise_signal(left.pop())
                return str((await llm.chat(f"{observation}")).text)

            return [str(each) for each in await asyncio.gather(think(), return_exceptions=True)]

    def simulation(**how: Any) -> Simulation:
        world = Line(3)
        agents, client = [GoesOn(name) for name in world.names], Client(Scripted(author))
        return Simulation(world, agents, client, mode=mode, **how)

    with pytest.raises(KeyboardInterrupt):
        simulation(out=tmp_path / "it", store="embedded").run(4)
    found = simulation(out=tmp_path / "it", resume=True).run(4)
    assert found.history_sha256 == simulation().run(4).history_sha256


def test_ctrl_c_while_the_run_is_tidied_up_waits_for_its_end(tmp_path: Path) -> None:
    class Closes(Scripted):
        async def close(self) -> None:
            signal.raise_signal(signal.SIGINT)
            await super().close()

    def simulation(backend: Scripted, **how: Any) -> Simulation:
        return Simulation(Line(1), [Thinks("a0")], Client(backend), out=tmp_path / "it", **how)

    with pytest.raises(KeyboardInterrupt):
        simulation(Closes(author)).run(3)
    assert simulation(Scripted(author), resume=True).run(4).steps == 4


def test_ctrl_c_while_a_simulation_is_made_closes_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def simulation(**how: Any) -> Simulation:
        agents, client = [Thinks("a0")], Client(Scripted(author))
        return Simulation(Line(1), agents, client, store="embedded", out=tmp_path / "it", **how)

    with monkeypatch.context() as patched:
        patched.setattr(simulation_module, "note_location", lambda *_: signal.raise_signal(2))
        with pytest.raises(KeyboardInterrupt):
            simulation()
    assert simulation(resume=True).run(2).steps == 2


def test_the_loop_runs_on_after_ctrl_c() -> None:
    async def press() -> None:
        raise KeyboardInterrupt

    async def wait_for(task: asyncio.Task[None]) -> None:
        await task

    with event_loop(None, Invocations(), 0.0) as (loop, _):
        ended = loop.create_future()
        loop.call_soon(ended.set_result, None)  # the loop is about to stop
        waits = loop.create_task(wait_for(loop.create_task(press())))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(ended)
        assert loop.run_until_complete(asyncio.wait([waits]))[0] == {waits}
        with pytest.raises(KeyboardInterrupt):  # another one
            loop.run_until_complete(press())


def test_tasks_of_an_optimistic_run_that_is_left_end_in_silence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Asking(Field):
        async def resolve(self, cluster: Any) -> None:
            for member in cluster:
                member.write(said=await member.ask(member.name, member.name))
            super().resolve(cluster)

    class Begins(Walker):
        async def answer(self, question: Any, llm: Any) -> Any:
            async def ask_often() -> str:
                said = [(await llm.chat(f"{question} {i}")).text for i in range(9)]
                return f"{said}"

            begun = asyncio.ensure_future(ask_often())
            await llm.chat("own")
            return await begun

    world = Asking()
    agents = [Begins(name) for name in world.names]
    client = Client(Slow(lambda _: 0.001))
    steps = Simulation(world, agents, client, mode="optimistic", waste_budget=1.0).steps(20)
    next(steps)
    steps.close()
    del steps, agents, client
    gc.collect()
    assert not capsys.readouterr().err
