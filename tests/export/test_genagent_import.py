"""An exported run is imported again: its people go on with what they knew and had planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from metropolis import Client, Simulation, make_scenario
from metropolis.cli.export import command
from metropolis.export.genagent_schedule import DAY_MINUTES, schedules_of
from metropolis.llm.backends.scripted import Scripted
from metropolis.world.appearance import Schedule
from metropolis.worlds.smallville.genagent.files import Fields
from metropolis.worlds.smallville.genagent.mind import schedule_of
from metropolis.worlds.smallville.resident import Resident
from metropolis.worlds.smallville.state import DAY_S, Task
from tests.cli.test_world import checkout, run_import

STEPS = 3540
"""From six o'clock to ten to four. The files do not tell in which order events were noticed within
a step, which could change a longer run."""


def simulated(folder: Path, steps: int, **options: Any) -> list[Resident]:
    """The residents of the town in `folder`, after a run."""
    scenario = make_scenario(str(folder))
    client = Client(Scripted(scenario.author))
    Simulation(scenario.world, scenario.agents, client, **options).run(steps)
    return list(scenario.agents)


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Resident], list[Resident], Path]:
    """Residents at the end of a run, those that its export was imported as, and their town."""
    root = tmp_path_factory.mktemp("twice")
    source = checkout(root / "source")
    assert run_import(source, root / "town").exit_code == 0
    residents = simulated(root / "town", STEPS, out=root / "run")
    stored = source / "environment" / "frontend_server" / "storage" / "lived"
    exported = CliRunner().invoke(command, ["genagent", str(root / "run"), "--out", str(stored)])
    assert exported.exit_code == 0, exported.output
    imported = run_import(source, root / "again", "--simulation", "lived")
    assert imported.exit_code == 0, imported.output
    assert "from 2023-02-13 15:50 on" in imported.output
    return residents, list(make_scenario(str(root / "again")).agents), root / "again"


def shown(name: str) -> str:
    """A name in exported files, with one space."""
    return name.replace(" de ", " de\xa0")


def doing(resident: Resident) -> tuple[object, ...]:
    """What is exported of its activity; the duration is rounded to minutes."""
    activity = resident.activity
    return activity.what, activity.goal, activity.thing, activity.thing_doing, activity.asleep


def minutes(tasks: list[Task], since_s: int = 0) -> list[tuple[str, int, int]]:
    return [
        (task.what, round(task.start_s / 60), round(task.end_s / 60))
        for task in tasks
        if task.end_s > since_s
    ]


def test_people_keep_what_they_know_and_plan(
    lived: tuple[list[Resident], list[Resident], Path],
) -> None:
    now_s = 6 * 3600 + 10 * STEPS
    for before, after in zip(*lived[:2], strict=True):
        assert after.name == before.name
        assert [*after.memory.nodes] == [*before.memory.nodes]
        assert after.known == before.known
        assert after.day.outline == before.day.outline
        assert minutes(after.day.hours) == minutes(before.day.hours)
        assert minutes(after.day.tasks, now_s) == minutes(before.day.tasks, now_s)
        assert {*after.talked} == {*before.talked}  # then: the time at which it ended
        assert (after.unreflected, after.settings) == (before.unreflected, before.settings)
        assert {*after.recent} == {*before.recent}
        assert after.profile.workplace == before.profile.workplace != ""
        assert doing(after) == doing(before)
    assert any(before.day.tasks[-1].end_s > now_s for before in lived[0])
    nodes = [node for before in lived[0] for node in before.memory.nodes]
    assert any(node.evidence for node in nodes)
    assert {node.kind for node in nodes} == {"event", "thought", "chat"}


def test_they_live_on(lived: tuple[list[Resident], list[Resident], Path]) -> None:
    known = [len(resident.memory.nodes) for resident in lived[1]]
    residents = simulated(lived[2], 400)
    assert all(len(of.memory.nodes) > one for of, one in zip(residents, known, strict=True))


days = st.lists(st.tuples(st.sampled_from(["rest", "work (late)"]), st.integers(30, 600)))
tasks = st.lists(st.tuples(st.integers(0, DAY_S), st.integers(10, 5400)), max_size=8)


@given(days, tasks, st.sampled_from([0, DAY_S]))
def test_schedules_cover_the_day(
    hours: list[tuple[str, int]], begun: list[tuple[int, int]], midnight_s: int
) -> None:
    entries, at = [], midnight_s
    for what, length in hours:
        end_s = min(midnight_s + DAY_S, at + 60 * length)
        entries += [{"what": what, "start_s": at, "end_s": end_s}] if end_s > at else []
        at = end_s
    if entries:
        entries[-1]["end_s"] = midnight_s + DAY_S
    planned = [
        {"what": f"task {start_s}", "start_s": midnight_s + start_s, "end_s": end_s}
        for start_s, length in begun
        if (end_s := midnight_s + min(DAY_S, start_s + length))
    ]
    mind = {"day": {"hours": entries, "tasks": planned}}
    found = schedules_of(Schedule("day.hours", "day.tasks"), mind, midnight_s)
    for name, listed in found.items():
        assert sum(length for _, length in listed) == (DAY_MINUTES if entries else 0), name
    fields = Fields(json.loads(json.dumps(found)), "file")
    read = schedule_of(fields, "f_daily_schedule_hourly_org")
    assert [(of.what, of.start_s, of.end_s) for of in read] == [
        (of["what"], of["start_s"] - midnight_s, of["end_s"] - midnight_s) for of in entries
    ]
    tomorrow = schedules_of(Schedule("day.hours", "day.tasks"), mind, midnight_s + DAY_S)
    assert not any(tomorrow.values())


def test_where_they_go_and_with_whom_they_talk_is_exported(tmp_path: Path) -> None:
    scenario = make_scenario("smallville")
    simulation = Simulation(
        scenario.world, scenario.agents, Client(Scripted(scenario.author)), out=tmp_path / "run"
    )
    simulation.run(800)
    words = ["genagent", str(tmp_path / "run"), "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(command, words).exit_code == 0
    ways, partners = 0, 0
    for resident in scenario.agents:
        folder = tmp_path / "out" / "personas" / shown(resident.name)
        scratch = json.loads((folder / "bootstrap_memory" / "scratch.json").read_text())
        at, goal = scratch["curr_tile"], [*resident.activity.goal]
        assert scratch["planned_path"] == ([] if at == goal else [goal])
        assert scratch["chatting_with"] == (resident.talk and shown(resident.talk.partner))
        ways += at != goal
        partners += resident.talk is not None
    assert ways > 0
    assert partners > 0
