"""State that would be restored as another type is refused: later steps would differ."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from metropolis import Agent, Entity, Simulation, World
from metropolis.types import MetropolisError
from metropolis.world.saving import check_saved, save


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
