"""Slips of authors that were not noticed, or ended in a traceback."""

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metropolis import Agent, Client, Entity, MetropolisError, Simulation, Whisper, World, fork
from metropolis.bench import METROPOLIS
from metropolis.llm.backends.scripted import Scripted
from metropolis.maps.map import GridMap
from metropolis.rules.metrics import GenAgent, Geodesic
from metropolis.store.embedded import EmbeddedServer
from metropolis.trace.parquet import read_trace

MODES = ["lockstep", "out_of_order", "optimistic"]


class Room(World):
    name = "room"
    perception_radius: float = 1
    max_velocity: float = 0

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        return [Entity(name, (i, 0), "agent") for i, name in enumerate(("ann", "bob"))]

    def observe(self, view: Any) -> Any:
        return None

    def resolve(self, cluster: Any) -> None:
        for member in cluster:
            self.act(member)

    def act(self, member: Any) -> None:
        pass


@dataclass
class Person(Agent):
    name: str
    mood: str = ""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        return None

    def whisper(self, text: str) -> Any:
        self.mood = text


def people(kind: type[Person] = Person) -> list[Person]:
    return [kind("ann"), kind("bob")]


HALF = "caf\udce9"
WRITES: list[Callable[[Any], object]] = [
    lambda member: member.emit("says", text=HALF),
    lambda member: member.emit(HALF),
    lambda member: member.write(said={"to": [HALF]}),
    lambda member: member.write(**{HALF: 1}),
    lambda member: member.add(HALF),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("act", WRITES)
def test_half_a_character_is_refused(mode: str, act: Callable[[Any], None]) -> None:
    class Writes(Room):
        def act(self, member: Any) -> None:
            act(member)

    with pytest.raises(MetropolisError, match=r"the text .* contains '\\udce9', a lone surr"):
        Simulation(Writes(), people(), mode=mode).run(2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("action", [nan, {"go": (0.5, -inf)}, [np.array([1.5, nan])]])
def test_an_action_that_is_no_number_is_refused(mode: str, action: Any) -> None:
    @dataclass
    class Divides(Person):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            return action

    sentence = rf"step 0, agent '...': its action is {re.escape(str(action))}; JSON does not sup"
    with pytest.raises(MetropolisError, match=sentence):
        Simulation(Room(), people(Divides), mode=mode).run(2)


@pytest.mark.parametrize("where", ["a store", "a folder"])
def test_a_state_that_would_be_restored_otherwise_is_refused_at_the_beginning(
    where: str, shared: EmbeddedServer, tmp_path: Path
) -> None:
    @dataclass
    class Homed(Person):
        home: Any = (3, 4)

    options: Any = {"store": shared.url} if where == "a store" else {"out": tmp_path / "run"}
    with pytest.raises(MetropolisError, match=r"'home' .* is \(3, 4\) and would be restored as \["):
        Simulation(Room(), people(Homed), **options).run(1)


@pytest.mark.parametrize(("mode", "store"), [*((mode, "memory") for mode in MODES), ("", "own")])
@pytest.mark.parametrize("action", [{"lift": [1j]}, {1: "votes"}])
def test_an_action_that_is_no_data_names_its_agent(
    mode: str, store: str, action: Any, shared: EmbeddedServer
) -> None:
    @dataclass
    class Odd(Person):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            return action if self.name == "bob" else None

    sentence = rf"^step 0, agent 'bob': its action {re.escape(str(action))} cannot be kept as JSON"
    options: Any = {"store": shared.url} if store == "own" else {"mode": mode}
    with pytest.raises(MetropolisError, match=sentence):
        Simulation(Room(), people(Odd), **options).run(2)


@pytest.mark.parametrize("velocity", [0.1, 0.3, 1 / 3, 0.5])
def test_a_step_of_exactly_the_velocity_is_allowed(velocity: float) -> None:
    class Walks(Room):
        max_velocity = velocity

        def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
            return [Entity(name, (0.1 + i, 0.7), "agent") for i, name in enumerate(("ann", "bob"))]

        def act(self, member: Any) -> None:
            member.move((member.position[0] + velocity, member.position[1]))

    found = {Simulation(Walks(), people(), mode=mode).run(200).history_sha256 for mode in MODES}
    assert len(found) == 1

    class Runs(Walks):
        def act(self, member: Any) -> None:
            member.move((member.position[0] + velocity + 1e-9, member.position[1]))

    with pytest.raises(MetropolisError, match="further than the velocity"):
        Simulation(Runs(), people()).run(2)


def test_names_of_added_things_are_unique() -> None:
    class Adds(Room):
        def act(self, member: Any) -> None:
            member.add("k/x")

    with pytest.raises(MetropolisError, match="adds a 'k/x'; a kind contains no /"):
        Simulation(Adds(), people()).run(2)

    class Begins(Room):
        def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
            return [*super().reset(seed=seed, options=options), Entity("apple/ann/2/0", (0, 0))]

    with pytest.raises(MetropolisError, match="'apple/ann/2/0', a name that 'ann' could give to"):
        Simulation(Begins(), people()).run(2)


def test_an_answer_that_is_no_json_names_agent_and_line() -> None:
    @dataclass
    class Parses(Person):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            return (await llm.chat("x")).json()

    client = Client(Scripted(lambda request, random: "no JSON"))
    sentence = (
        r"step 0, agent 'ann', in .*proceed: .*test_slips.py:\d+: the model's answer is not J"
    )
    with pytest.raises(MetropolisError) as raised:
        Simulation(Room(), people(Parses), client, mode="lockstep").run(2)
    assert re.search(sentence, "\n".join([str(raised.value), *raised.value.__notes__]))


def test_an_edit_that_would_be_lost_is_refused(tmp_path: Path) -> None:
    Simulation(Room(), people(), out=tmp_path / "run").run(3)

    def branch(edit: Any) -> None:
        fork(tmp_path / "run", Room(), people(), at=1, edit=edit, out=tmp_path / "branch")

    def misspelt(moment: Any) -> None:
        moment.agents["ann"].moood = "sad"

    def later(moment: Any) -> None:
        moment.step = 2

    with pytest.raises(MetropolisError, match=r"'ann' .* has set 'moood', which is not one of its"):
        branch(misspelt)
    with pytest.raises(MetropolisError, match=r"has replaced moment\.step, 1, by 2"):
        branch(later)


def test_errors_in_save_and_restore_name_their_lines(tmp_path: Path) -> None:
    class Saver(Person):
        def save(self) -> Any:
            return {"mood": self.modo if self.mood else ""}  # type: ignore[attr-defined]

        def restore(self, saved: Any) -> None:
            sys.exit()

    Simulation(Room(), people(Saver), out=tmp_path).run(2)
    said = r"^the agent 'ann' cannot be {}: .*test_slips\.py:\d+: {}.*; fix it there$"
    with pytest.raises(MetropolisError, match=said.format("restored", "SystemExit")):
        Simulation(Room(), people(Saver), out=tmp_path, resume=True)
    moody = [Saver("ann", "glad"), Saver("bob")]
    with pytest.raises(MetropolisError, match=said.format("saved", "AttributeError: .*modo")):
        Simulation(Room(), moody, mode="optimistic").run(2)


def test_a_whisper_that_fails_is_one_sentence(tmp_path: Path) -> None:
    Simulation(Room(), people(), out=tmp_path / "run").run(3)

    @dataclass
    class Deaf(Person):
        async def whisper(self, text: str) -> None:  # type: ignore[override]
            pass

    @dataclass
    class Gone(Person):
        def whisper(self, text: str) -> None:
            sys.exit()

    whisper, out = Whisper("ann", "x"), tmp_path / "b"
    with pytest.raises(MetropolisError, match=r"Deaf\.whisper: it is an async function; it should"):
        fork(tmp_path / "run", Room(), people(Deaf), at=1, edit=whisper, out=out)
    with pytest.raises(MetropolisError, match=r"Gone\.whisper: .*test_slips\.py:\d+: SystemExit"):
        fork(tmp_path / "run", Room(), people(Gone), at=1, edit=whisper, out=out)


WORLD = """
from metropolis import Agent, Entity, Scenario, World
from dataclasses import dataclass

class Room(World):
    name, perception_radius, max_velocity = "room", 1, 0
    def reset(self, *, seed, options):
        return [Entity("ann", (0, 0), "agent")]
    def observe(self, view):
        return None
    def resolve(self, cluster):
        pass

@dataclass
class Person(Agent):
    name: str
    async def proceed(self, observation, llm):
        return (await llm.chat(f"{self.step}")).text
    def tables(self):
        return TABLES
    def whisper(self, text):
        raise ValueError("deaf")

def make(*, agents=None, seed=0):
    return Scenario(Room(), [Person("ann")], lambda request, random: "yes", steps=3)
"""


@pytest.mark.parametrize(
    ("tables", "found"),
    [
        ('{"deals": [{"step": 3, "price": "5"}]}', "price"),
        ('[{"step": 3}]', "tables() returned [{'step': 3}]; it should map titles to lists of rows"),
        ('{"deals": "none"}', "tables() returned {'deals': 'none'}; it should map titles"),
    ],
)
def test_tables_of_other_values(tmp_path: Path, tables: str, found: str) -> None:
    world = tmp_path / "room.py"
    world.write_text(WORLD.replace("TABLES", tables))

    def printed(*words: str) -> str:
        ended = subprocess.run(
            [*METROPOLIS, *words], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert "Traceback" not in ended.stderr
        return " ".join(f"{ended.stdout} {ended.stderr}".split())

    printed("run", "room.py", "--out", "run", "--quiet")
    assert found in printed("show", "run", "--agent", "ann")
    assert "ValueError: deaf" in printed("whisper", "run", "hush", "--agent", "ann", "--at", "1")


def test_a_trace_of_fewer_steps_does_not_stay(tmp_path: Path) -> None:
    out = tmp_path / "run"
    Simulation(Room(), people(), out=out).run(3)
    assert read_trace(out / "trace.parquet").steps == 3
    steps = Simulation(Room(), people(), out=out, resume=True).steps(6)
    next(steps)
    assert not (out / "trace.parquet").exists()
    list(steps)
    assert read_trace(out / "trace.parquet").steps == 6


def test_a_refused_resume_leaves_the_store_s_location(tmp_path: Path) -> None:
    out = tmp_path / "a{b}"  # braces are not for names in stores
    running = Simulation(Room(), people(), out=out, store="embedded").steps(50)
    next(running)
    kept = (out / "store.json").read_bytes()
    with pytest.raises(MetropolisError, match="is in use"):
        Simulation(Room(), people(), out=out, store="memory", resume=True).run(50)
    assert (out / "store.json").read_bytes() == kept
    assert len(list(running)) == 49


@pytest.mark.parametrize("mode", MODES)
def test_coroutines_of_a_run_that_ends_by_an_error_are_closed(mode: str) -> None:
    class Waits(Room):
        def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
            return [Entity(name, (9 * i, 0), "agent") for i, name in enumerate(("ann", "bob"))]

        async def resolve(self, cluster: Any) -> None:
            pass

    @dataclass
    class Fails(Person):
        def routine(self, observation: Any) -> Any:
            if self.step == 1 and self.name == "bob":
                raise ValueError("planned")

        async def proceed(self, observation: Any, llm: Any) -> Any:
            return None

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="planned"):
            Simulation(Waits(), people(Fails), mode=mode).run(3)
        gc.collect()
    assert not [one for one in warned if "never awaited" in str(one.message)]


def test_a_budget_that_ends_a_run_prints_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    @dataclass
    class Asks(Person):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            tasks = [asyncio.create_task(llm.chat(f"{i}")) for i in range(4)]
            return [(await task).text for task in tasks]

    result = Simulation(Room(), people(Asks), Client(Scripted(), max_tokens=2000)).run(99)
    gc.collect()
    assert result.stopped is not None
    assert caplog.text == ""


def test_a_run_ends_before_the_last_date() -> None:
    world = Room()
    world.start = datetime(9999, 12, 31, 23, 59, 45)
    Simulation(world, people()).run(1)
    with pytest.raises(MetropolisError, match="step 2 of the world would begin after"):
        Simulation(world, people()).run(2)
    with pytest.raises(MetropolisError, match="would begin after the year 9999"):
        Simulation(Room(), people()).run(10**14)


def test_a_horizon_below_the_radius_is_refused() -> None:
    world = Room()
    world.metric = Geodesic(np.zeros((4, 4), bool), horizon=2)
    world.perception_radius = 3
    with pytest.raises(MetropolisError, match=r"the horizon .* is 2, .* its velocity, 3$"):
        Simulation(world, people())


def test_a_map_that_is_not_the_metrics_is_refused() -> None:
    none, wall = np.zeros((12, 12), bool), np.zeros((12, 12), bool)
    wall[3, 3] = True
    rooms, one_room = np.zeros((12, 12), np.int32), wall.astype(np.int32)
    for metric, differs in (
        (Geodesic(none), "the walls of the world's metric differ"),
        (GenAgent(wall, one_room, 1), "the arenas of the world's metric differ"),
    ):
        world = Room()
        world.metric = metric
        world.map = GridMap("walled", wall, rooms, ("",), rooms, ("",))
        with pytest.raises(MetropolisError, match=differs):
            Simulation(world, people())
