"""`verify` finds runs that lockstep would not reproduce, and buys nothing."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from metropolis import MetropolisError, Simulation, verify
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, RefusedError, Request
from metropolis.llm.client import Client
from metropolis.llm.journal import Journal, read_journal
from metropolis.runtime.folder.comparison import Difference, first_difference
from metropolis.runtime.folder.history import HistoryWriter, read_history
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.reruns.verify import Verified
from metropolis.world.entities import Entity
from metropolis.world.record import StepRecord
from metropolis.world.transaction import Transaction
from tests.runtime.purchases import Counting
from tests.runtime.test_fork import Town, forget
from tests.runtime.walkers import Meadow, Walker, author

STEPS = 20


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mode", ["out_of_order", "sequential"])
def test_a_sound_world_is_verified_and_nothing_is_bought(
    seed: int, mode: str, tmp_path: Path
) -> None:
    town, backend = Town(seed), Counting()
    town.run(tmp_path / "run", backend=backend, mode=mode).run(STEPS)
    bought, answers = backend.bought.total(), (tmp_path / "run/journal.jsonl").read_bytes()
    seen = []
    found = verify(tmp_path / "run", *town.parts(), on_step=lambda r: seen.append(r.step))
    assert found == Verified(STEPS, 0, ((0, STEPS),))
    assert found.complete
    assert str(found) == "verified: all 20 steps are equal to lockstep's"
    assert seen == list(range(STEPS))
    assert backend.bought.total() == bought > 0
    assert (tmp_path / "run/journal.jsonl").read_bytes() == answers


class Dice(Meadow):
    """Writes unseeded random values."""

    async def resolve(self, cluster: Transaction) -> None:
        await super().resolve(cluster)
        for member in cluster:
            member.write(last=str(random.choice(range(100))))


class Clocked(Meadow):
    """Reads the wall clock."""

    async def resolve(self, cluster: Transaction) -> None:
        await super().resolve(cluster)
        for member in cluster:
            member.write(last=str(time.perf_counter_ns()))


@pytest.mark.parametrize("world", [Dice, Clocked])
def test_chance_and_clocks_are_found_out(world: type[Meadow], tmp_path: Path) -> None:
    def parts() -> tuple[Meadow, list[Walker]]:
        made = world(4)
        return made, [Walker(name) for name in made.names]

    Simulation(*parts(), Scripted(author), out=tmp_path / "run").run(STEPS)
    found = verify(tmp_path / "run", *parts())
    assert found.deviation is not None
    assert found.deviation.step == 0
    assert found.deviation.agent in parts()[0].names
    assert "['state']['last'] is " in found.deviation.what
    assert str(found).startswith("not verified: lockstep differs at step 0, 'w0")
    assert not found.complete


@dataclass
class Moody(Walker):
    """Makes a call with an unseeded random prompt."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        if self.step == 3:
            await llm.chat(f"{random.random()}", function="muse")
        return await super().proceed(observation, llm)


def test_what_an_agent_asks_is_compared(tmp_path: Path) -> None:
    world = Meadow(4)
    agents = [Moody(name) for name in world.names]
    Simulation(world, agents, Scripted(author), out=tmp_path / "run").run(8)
    found = verify(tmp_path / "run", world, [Moody(name) for name in world.names])
    assert found.deviation is not None
    assert (found.deviation.step, found.parts) == (3, ((0, 3),))
    assert "makes another request for muse than it did" in str(found)


def test_an_answer_that_the_journal_lacks_is_told_and_not_bought(tmp_path: Path) -> None:
    town, backend = Town(1), Counting()
    town.run(tmp_path / "run", backend=backend).run(STEPS)
    bought, path = backend.bought.total(), tmp_path / "run/journal.jsonl"
    answers = dict(read_journal(path))
    lost = list(answers)[len(answers) // 2]
    path.unlink()
    run = RunDirectory(tmp_path / "run").read()["run"]
    journal = Journal(path, run)
    for key, completion in answers.items():
        if key != lost:
            journal.put(key, completion)
    journal.close()
    found = verify(tmp_path / "run", *town.parts())
    assert found.deviation is not None
    assert found.deviation.step == lost.step
    assert f"no answer to its call of {lost.function}" in found.deviation.what
    assert backend.bought.total() == bought
    path.unlink()
    Journal(path, run).close()
    with pytest.raises(MetropolisError, match=r"holds none of its \d+ answers, as when workers on"):
        verify(tmp_path / "run", *town.parts())


class Failing(Scripted):
    """Refuses some requests."""

    async def complete(self, request: Request) -> Completion:
        if request.step % 3 == 0:
            raise RefusedError("not today")
        return await super().complete(request)


class Patient(Walker):
    """Handles refused calls."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        try:
            return await super().proceed(observation, llm)
        except RefusedError:
            return {"move": 0, "eat": False, "shout": "", "talk": False}


def test_calls_that_failed_fail_again(tmp_path: Path) -> None:
    world = Meadow(3, joint=-1)
    llm = Client(Failing(author), retries=0)
    Simulation(world, [Patient(name) for name in world.names], llm, out=tmp_path / "run").run(12)
    assert verify(tmp_path / "run", world, [Patient(name) for name in world.names]).complete


def test_of_a_long_run_parts_are_verified(tmp_path: Path) -> None:
    town = Town(2)
    run = tmp_path / "run"
    town.run(run, checkpoint_wall_s=0.0).run(60)
    drawn = set()
    for seed in range(5):
        found = verify(run, *town.parts(), steps=12, seed=seed)
        assert found == verify(run, *town.parts(), steps=12, seed=seed)
        assert found.deviation is None
        assert not found.complete
        assert sum(end - first for first, end in found.parts) <= 12
        assert "of 60 steps are equal to lockstep's (" in str(found)
        assert str(found).endswith("; the others were not run again")
        drawn.add(found.parts)
    assert len(drawn) > 1
    stopped = verify(run, *town.parts(), should_stop=lambda: True)
    assert stopped.parts == ()
    assert str(stopped) == "not verified: no step was run again"


def test_a_changed_line_of_the_history_is_found(tmp_path: Path) -> None:
    town = Town(3)
    town.run(tmp_path / "run").run(STEPS)
    folder = RunDirectory(tmp_path / "run")
    folder.read()
    lines = list(read_history(folder.history, folder.run))
    folder.history.unlink()
    history = HistoryWriter(folder.history, 0, folder.run)
    calls = 0
    for step, line in enumerate(lines):
        content = line.content.replace(b'"move":', b'"move":1', 1) if step == 7 else line.content
        history.append_line(content, line.calls - calls)
        calls = line.calls
    history.close()
    found = verify(tmp_path / "run", *town.parts())
    assert found.deviation is not None
    assert (found.deviation.step, found.parts) == (7, ((0, 7),))
    assert "the action of 'w" in found.deviation.what


def test_a_branch_is_verified_from_where_it_begins(tmp_path: Path) -> None:
    town = Town(4)
    town.run(tmp_path / "run").run(STEPS)
    town.fork(tmp_path / "run", tmp_path / "branch", at=8, edit=forget, seed=9)
    town.run(tmp_path / "branch", resume=True).run(STEPS)
    found = verify(tmp_path / "branch", *town.parts())
    assert found.complete
    assert str(found) == (
        "verified: steps 8 to 19, all of the branch's own, are equal to lockstep's"
    )


def test_a_run_in_a_store_is_verified(tmp_path: Path) -> None:
    town = Town(5)
    town.run(tmp_path / "run", store="embedded", workers=2).run(STEPS)
    assert verify(tmp_path / "run", *town.parts()).complete


def test_another_world_is_refused(tmp_path: Path) -> None:
    town = Town(5)
    town.run(tmp_path / "run").run(2)
    world, agents = town.parts()
    world.name = "heath"
    with pytest.raises(MetropolisError, match="is a run of meadow, not of heath"):
        verify(tmp_path / "run", world, agents)


def test_agents_that_have_lived_are_refused(tmp_path: Path) -> None:
    world = Meadow(3)
    agents = [Walker(name) for name in world.names]
    Simulation(world, agents, Scripted(author), out=tmp_path / "run").run(4)
    with pytest.raises(MetropolisError, match="'w00' was used in a run"):
        verify(tmp_path / "run", world, agents)


@pytest.mark.parametrize("steps", [0, -3, 2.5, "5"])
def test_steps_that_are_no_number_of_steps_are_refused(steps: Any, tmp_path: Path) -> None:
    town = Town(5)
    town.run(tmp_path / "run").run(4)
    with pytest.raises(MetropolisError, match="it should be a whole number, at least 1"):
        verify(tmp_path / "run", *town.parts(), steps=steps)


class Broken(Meadow):
    """Its `resolve` fails."""

    async def resolve(self, cluster: Transaction) -> None:
        raise ZeroDivisionError("no grass")


def test_only_what_worlds_and_agents_raise_is_a_deviation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Meadow(3)
    agents = [Walker(name) for name in world.names]
    Simulation(world, agents, Scripted(author), out=tmp_path / "run").run(4)
    found = verify(tmp_path / "run", Broken(3), [Walker(name) for name in world.names])
    assert found.deviation is not None
    assert "ZeroDivisionError: no grass" in found.deviation.what

    def full(*_: Any) -> Any:
        raise OSError("the disk")

    monkeypatch.setattr("metropolis.runtime.reruns.verify.first_difference", full)
    with pytest.raises(OSError, match="the disk"):
        verify(tmp_path / "run", Meadow(3), [Walker(name) for name in world.names])


@pytest.mark.parametrize(
    ("expected", "found", "what"),
    [
        ({}, {"tuft": None}, "the entity 'tuft' is None instead of nothing"),
        ({"tuft": None}, {}, "the entity 'tuft' is nothing instead of None"),
        (
            {"tuft": Entity("tuft", (1, 1), "thing", {"ripe": None})},
            {"tuft": Entity("tuft", (1, 1), "thing")},
            "the entity 'tuft'['state']['ripe'] is nothing instead of None",
        ),
    ],
)
def test_a_removal_that_differs_is_named(expected: Any, found: Any, what: str) -> None:
    one, other = (StepRecord(3, {}, writes, []) for writes in (expected, found))
    assert first_difference(one, other) == Difference("tuft", what)
    assert first_difference(one, one) is None
