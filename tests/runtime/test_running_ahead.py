"""Ordinary agents and worlds whose history or end depended on running ahead."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import gc
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from metropolis import Agent, CausalityError, Client, Entity, Simulation, World
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, LLMError, Request
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.workers.optimistic import call_gate

MODES = ["out_of_order", "optimistic"]
SIDE = 14
WALKS = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]


class Slow(Scripted):
    """Answers after a time that `latency_s` gives, and counts requests."""

    def __init__(self, latency_s: Callable[[Request], float]) -> None:
        super().__init__(lambda request, random: f"{random.randrange(1000)}")
        self._latency_s = latency_s
        self.sent: Counter[tuple[Any, ...]] = Counter()

    async def complete(self, request: Request) -> Completion:
        self.sent[request.agent, request.step, request.digest, request.occurrence] += 1
        await asyncio.sleep(self._latency_s(request))
        return await super().complete(request)


class Field(World):
    name = "field"
    perception_radius = 4
    max_velocity = 1
    joint_radius: float | None = 0

    def __init__(self) -> None:
        self.names = [f"a{i}" for i in range(8)]

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        draw = Random(seed).randrange
        return [Entity(n, (draw(SIDE), draw(SIDE)), "agent", {"n": 0}) for n in self.names]

    def observe(self, view: Any) -> Any:
        return sorted((body.name, body.position) for body in view.agents())

    def resolve(self, cluster: Any) -> None:
        for member in cluster:
            (x, y), (dx, dy) = member.position, member.action
            member.move((min(max(x + dx, 0), SIDE), min(max(y + dy, 0), SIDE)))


@dataclass
class Walker(Agent):
    name: str
    heard: list[str] = field(default_factory=list)

    def question(self, observation: Any) -> str:
        return f"{observation} {len(self.heard)}"

    async def proceed(self, observation: Any, llm: Any) -> Any:
        if self.random.random() < 0.4:
            self.heard.append((await llm.chat(self.question(observation))).text)
        return self.walk()

    def walk(self) -> tuple[int, int]:
        drawn = zlib.crc32(f"{self.heard[-4:]}".encode()) + self.random.randrange(5)
        return WALKS[drawn % 5]


def history(
    mode: str,
    agent: type[Walker] = Walker,
    world: World | None = None,
    latency_s: Callable[[Request], float] = lambda _: 0.002,
    steps: int = 25,
    seed: int = 3,
    **options: Any,
) -> str:
    world = world or Field()
    agents = [agent(entity.name) for entity in world.reset(seed=0, options={})]
    how = {"waste_budget": 0.2} if mode == "optimistic" else {}
    run = Simulation(world, agents, Client(Slow(latency_s), **options), mode=mode, seed=seed, **how)
    return run.run(steps).history_sha256


@pytest.mark.parametrize("seed", [4])
def test_an_agent_that_gives_up_a_call_that_was_held_back(seed: int) -> None:
    @dataclass
    class Careful(Walker):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            try:
                answer = await asyncio.wait_for(llm.chat(self.question(observation)), 0.5)
                self.heard.append(answer.text)
            except TimeoutError:
                self.heard.append("no answer")
            return self.walk()

    def latency_s(request: Request) -> float:
        return 0.8 if request.speculative else 0.01 if request.agent == 0 else 0.003

    expected = history("lockstep", Careful, latency_s=latency_s, steps=15, seed=seed)
    assert history("optimistic", Careful, latency_s=latency_s, steps=15, seed=seed) == expected


@pytest.mark.parametrize("seed", [1])
def test_an_agent_that_handles_the_error_of_a_call_that_ranked_last(seed: int) -> None:
    @dataclass
    class Catches(Walker):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            try:
                self.heard.append((await llm.chat(self.question(observation))).text)
            except LLMError:
                self.heard.append("no answer")
            return self.walk()

    def latency_s(request: Request) -> float:
        waits = request.speculative and zlib.crc32(request.digest.encode()) % 4 == 0
        return 0.6 if waits else 0.05 if request.agent == 0 else 0.003

    options = {"latency_s": latency_s, "seed": seed, "timeout_s": 0.3, "retries": 0}
    expected = history("lockstep", Catches, **options)  # type: ignore[arg-type]
    assert history("optimistic", Catches, **options) == expected  # type: ignore[arg-type]


def test_a_plain_agent_that_retries_whatever_happens() -> None:
    @dataclass
    class Retries(Walker):
        def proceed(self, observation: Any, llm: Any) -> Any:
            while True:
                try:
                    self.heard.append(llm.chat(self.question(observation)).text)
                    return self.walk()
                except Exception:  # noqa: BLE001, S110
                    pass

    def latency_s(request: Request) -> float:
        return zlib.crc32(request.digest.encode()) % 20 / 1000

    expected = history("lockstep", Retries, latency_s=latency_s)
    assert history("optimistic", Retries, latency_s=latency_s) == expected


@pytest.mark.parametrize("seed", [1, 2])
def test_agents_that_share_a_semaphore(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_gate, "STUCK_S", 0.02)

    def agent() -> type[Walker]:
        limit = asyncio.Semaphore(1)

        @dataclass
        class Limited(Walker):
            async def proceed(self, observation: Any, llm: Any) -> Any:
                if self.random.random() < 0.5:
                    self.heard.append((await llm.chat(f"{observation}", function="think")).text)
                if self.random.random() < 0.3:
                    async with limit:
                        self.heard.append((await llm.chat(self.question(observation))).text)
                return self.walk()

        return Limited

    def latency_s(request: Request) -> float:
        return zlib.crc32(request.digest.encode()) % 9 / 1000

    expected = history("lockstep", agent(), latency_s=latency_s, steps=60, seed=seed)
    assert history("optimistic", agent(), latency_s=latency_s, steps=60, seed=seed) == expected


VARIABLE: contextvars.ContextVar[str | None] = contextvars.ContextVar("variable", default=None)


@dataclass
class Remembers(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        known = VARIABLE.get()
        if known is None:
            VARIABLE.set(known := self.name)
        self.heard.append(known)
        return await super().proceed(observation, llm)


@dataclass
class Divides(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        if self.name in ("a1", "a5"):
            decimal.setcontext(decimal.Context(prec=5))
        self.heard.append(f"{decimal.Decimal(1) / decimal.Decimal(7)}")
        return await super().proceed(observation, llm)


@pytest.mark.parametrize("agent", [Remembers, Divides])
@pytest.mark.parametrize("mode", MODES)
def test_context_variables_stay_in_their_step(agent: type[Walker], mode: str) -> None:
    def run(mode: str) -> str:
        return contextvars.Context().run(history, mode, agent)

    assert run(mode) == run("lockstep")


class Tells(Field):
    """Hands the texts of errors to its agents."""

    def observe(self, view: Any) -> Any:
        texts = []
        for name in ("", "missing", *self.names):
            try:
                view.entity(name)
            except CausalityError as error:
                texts.append(f"{error}")
        return [super().observe(view), sorted(texts)]

    def resolve(self, cluster: Any) -> None:
        super().resolve(cluster)
        for member in cluster:
            try:
                member.write(self.names[member.step % 8], n=member.step)
            except CausalityError as error:
                member.write(told=f"{error}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_errors_do_not_tell_where_things_out_of_sight_are(mode: str, seed: int) -> None:
    expected = history("lockstep", world=Tells(), seed=seed)
    assert history(mode, world=Tells(), seed=seed) == expected


class Market(Field):
    """Who buys waits for who sells when it resolves their actions."""

    joint_radius = 2

    def __init__(self) -> None:
        self.names = ["a0", "a1"]

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        return [Entity(name, (i, 0), "agent") for i, name in enumerate(self.names)]

    async def resolve(self, cluster: Any) -> None:
        offers: asyncio.Queue[str] = asyncio.Queue()

        async def act(member: Any) -> None:
            if member.name == "a0":
                await offers.put(member.name)
                member.write(sold=member.step)
            else:
                member.write(bought=await offers.get())

        await asyncio.gather(*map(act, cluster))


class Patient(Field):
    """Waits for a time when it resolves actions."""

    async def resolve(self, cluster: Any) -> None:
        await asyncio.sleep(0.001)
        super().resolve(cluster)


class Sheltered(Field):
    """Its tasks go on if the resolution that waits for them is given up."""

    async def resolve(self, cluster: Any) -> None:
        async def act(member: Any) -> None:
            await asyncio.sleep(member.random.random() * 0.01)
            member.write(n=member.step)

        tasks = [asyncio.ensure_future(act(member)) for member in cluster]
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()
        super().resolve(cluster)


def test_tasks_of_resolutions_that_are_given_up_end_in_silence() -> None:
    errors: list[Any] = []

    class Watched(Sheltered):
        async def resolve(self, cluster: Any) -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, of: errors.append(of))
            await super().resolve(cluster)

    assert history("optimistic", world=Watched()) == history("lockstep", world=Watched())
    gc.collect()
    assert not errors


@pytest.mark.parametrize("mode", ["lockstep", *MODES])
@pytest.mark.parametrize("world", [Market, Patient])
def test_a_world_may_wait_when_it_resolves(mode: str, world: type[Field]) -> None:
    assert history(mode, world=world(), steps=10) == history("lockstep", world=world(), steps=10)


def test_tasks_that_wrong_executions_leave_behind_end_in_silence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Asking(Field):
        joint_radius = 2

        async def resolve(self, cluster: Any) -> None:
            for member in cluster:
                names = [other.name for other in cluster]
                member.write(said=await member.ask(member.name, f"{names}"))
            super().resolve(cluster)

    class Begins(Walker):
        async def answer(self, question: Any, llm: Any) -> Any:
            async def ask_twice() -> str:
                first = await llm.chat(question)
                return str((await llm.chat(first.text)).text)

            begun = asyncio.ensure_future(ask_twice())
            await llm.chat("own")
            return await begun

    assert history("optimistic", Begins, Asking()) == history("lockstep", Begins, Asking())
    gc.collect()
    assert not capsys.readouterr().err


def test_agents_that_give_up_calls_at_once_do_not_stop_time() -> None:
    """A step that gave up a speculative request is repeated, at the same virtual time."""

    @dataclass
    class Hasty(Walker):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            asked = asyncio.ensure_future(llm.chat(self.question(observation)))
            await llm.chat("first")
            asked.cancel()
            await asyncio.wait([asked])
            return self.walk()

    def history(mode: str) -> str:
        world = Field()
        backend = VirtualInstances(
            Scripted(lambda request, random: "word " * random.randrange(1, 60)),
            SimulatedFleet.parse(["llama-3-8b/l4"]),
        )
        agents = [Hasty(name) for name in world.names]
        return Simulation(world, agents, Client(backend), mode=mode).run(30).history_sha256

    assert history("optimistic") == history("lockstep")


def test_an_agent_that_leaves_its_calls_behind_does_not_stop_time() -> None:
    @dataclass
    class Leaves(Walker):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            self._asked = asyncio.ensure_future(llm.chat(self.question(observation)))
            await asyncio.sleep(0)
            return self.walk()

    def history(mode: str) -> str:
        world = Field()
        backend = VirtualInstances(
            Scripted(lambda request, random: f"{random.randrange(1000)}"),
            SimulatedFleet.uniform("llama-3-8b/l4", 2),
        )
        agents = [Leaves(name) for name in world.names]
        return Simulation(world, agents, Client(backend), mode=mode, seed=3).run(10).history_sha256

    assert history("optimistic") == history("lockstep")
