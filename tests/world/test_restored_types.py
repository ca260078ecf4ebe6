"""State that would be restored as another type is refused: later steps would differ."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pytest

from metropolis import Agent, Entity, Simulation, World, check_world, make_scenario
from metropolis.types import MetropolisError
from metropolis.world.saved_check import check_saved
from metropolis.world.saving import save


class Alone(World):
    name = "alone"
    perception_radius = max_velocity = 1

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        return [Entity("ann", (0, 0), "agent")]

    def observe(self, view: Any) -> Any:
        return None

    def resolve(self, cluster: Any) -> None:
        for member in cluster:
            member.emit("says", text=member.action)


@dataclass
class Keeps(Agent):
    name: str
    scores: list[float] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    seen: dict[str, int] = field(default_factory=dict)
    now: datetime = datetime(2026, 3, 28, 12, tzinfo=UTC)

    async def proceed(self, observation: Any, llm: Any) -> Any:
        return f"{self.scores} {self.names} {self.seen} {self.now:%Z}"


RESTORED_DIFFERENTLY = [
    {"scores": [np.float64(1)]},
    {"scores": [np.int64(1)]},
    {"names": {np.str_("ann")}},
    {"seen": {"ann": np.int8(1)}},
    {"seen": {np.str_("ann"): 1}},
    {"seen": OrderedDict(ann=1)},
    {"seen": defaultdict(int)},
    {"seen": Counter(ann=1)},
    {"now": datetime(2026, 3, 28, 12, tzinfo=ZoneInfo("Europe/Berlin"))},
    {"now": datetime(2026, 10, 25, 2, fold=1)},
]


@pytest.mark.parametrize("state", RESTORED_DIFFERENTLY, ids=str)
def test_what_would_be_restored_as_another_type_is_refused(state: Mapping[str, Any]) -> None:
    agent, (name,) = Keeps("ann", **state), state
    for exact in (False, True):
        with pytest.raises(
            MetropolisError, match=f"the field '{name}' of the agent 'ann' .* would"
        ):
            check_saved(agent, save(agent), exact=exact)
    simulation = Simulation(Alone(), [agent], store="embedded")  # its workers restore it
    with pytest.raises(MetropolisError, match=f"the field '{name}' of the agent 'ann'"):
        simulation.run(1)


def test_equal_states_are_kept() -> None:
    agent = Keeps("ann", [1, 2.5], {"bob"}, {"bob": 1})
    check_saved(agent, save(agent))
    assert Simulation(Alone(), [agent], store="embedded").run(2).steps == 2


class Friend(msgspec.Struct):
    name: str
    trust: float = 0.0
    words: list[str] = msgspec.field(default_factory=list)


class Place(msgspec.Struct, frozen=True):
    x: int
    y: int


@dataclass
class Sociable(Agent):
    name: str
    friends: dict[str, Friend] = field(default_factory=dict)
    best: Friend | None = None
    words: list[str] = field(default_factory=list)
    home: Place | None = None
    work: Place | None = None
    nested: Any = None

    async def proceed(self, observation: Any, llm: Any) -> Any:
        return None


def test_values_within_structs_are_compared() -> None:
    agent = Sociable("ann", {"bob": Friend("bob", 0.5), "cem": Friend("cem", 1)})
    with pytest.raises(MetropolisError, match=r", at friends\['cem'\]\.trust, is 1 and would be "):
        check_saved(agent, save(agent), exact=True)
    agent.friends["cem"].trust = np.float64(0.3)
    with pytest.raises(MetropolisError, match=r"at friends\['cem'\]\.trust, is np.float64\(0.3\) "):
        check_saved(agent, save(agent))


def test_structs_in_two_places_are_refused() -> None:
    agent = Sociable("ann", {"bob": Friend("bob")}, Friend("bob"))
    agent.work = agent.home = Place(1, 2)  # cannot change, so two objects are as good as one
    check_saved(agent, save(agent), exact=True)
    agent.best = agent.friends["bob"]
    with pytest.raises(
        MetropolisError, match=r"one Friend in two places, friends\['bob'\] and best:"
    ):
        check_saved(agent, save(agent))
    agent.best, agent.words = None, agent.friends["bob"].words
    with pytest.raises(
        MetropolisError, match=r"list in two places, friends\['bob'\]\.words and wor"
    ):
        check_saved(agent, save(agent))


def test_a_state_that_is_nested_too_deep_is_refused() -> None:
    agent, sentences = Sociable("ann"), set()
    for depth in range(1000):
        agent.nested = [agent.nested]
        if depth < 700:
            continue
        try:
            check_saved(agent, save(agent))
        except MetropolisError as error:
            sentences.add(f"{error}")
    assert any("'ann' (Sociable) is nested too deeply to be restored" in each for each in sentences)
    for _ in range(100_000):
        agent.nested = [agent.nested]
    with pytest.raises(MetropolisError, match=r"cannot be saved \((maximum rec|Stack over)"):
        save(agent)


DIARIST = """
from __future__ import annotations

from dataclasses import dataclass, field
from metropolis import Agent, Scenario
from metropolis.worlds.minimal import Green
from msgspec import Struct

@dataclass
class Page:
    text: str
    notes: list[Note] = field(default_factory=list)

class Note(Struct):
    text: str

@dataclass
class Diarist(Agent):
    name: str
    diary: list[Page] = field(default_factory=list)

    async def proceed(self, observation, llm):
        self.diary.append(Page("windy", [Note("north")]))
        return {"walk": (0, 0), "say": ""}

def make(*, agents=None, seed=0):
    return Scenario(Green(["ann"]), [Diarist("ann")])
"""


@pytest.mark.parametrize("imported", [False, True])
def test_agents_of_a_file_that_is_loaded_again_are_restored(
    imported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"diarist_{imported}"
    file = tmp_path / f"{name}.py"
    file.write_text(DIARIST)
    monkeypatch.syspath_prepend(f"{tmp_path}")
    make = import_module(name).make if imported else partial(make_scenario, file)
    for scenario in (make(), make_scenario(file))[::-1]:
        Simulation(scenario.world, scenario.agents, mode="optimistic").run(3)
    check_world(file, seeds=(0,), steps=6, schedules=1)
