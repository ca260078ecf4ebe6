"""Numbers of other types than Python's: they count as the Python numbers that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from metropolis import CausalityError, Entity, MetropolisError, Simulation
from tests.runtime.test_slips import MODES, Room, people


@dataclass
class Far(Room):
    """Where single precision knows no third of a tile."""

    place: Callable[[Any], Any]
    how: str
    max_velocity: float = 0.3125

    def reset(self, *, seed: int, options: Any) -> list[Entity]:
        return [Entity("ann", (1e6, 0), "agent"), Entity("bob", (0, 0), "agent")]

    def act(self, member: Any) -> None:
        if member.name == "ann":
            place = self.place(member.position[0]), 0
            getattr(member, self.how)(*[place] if self.how == "move" else ["x", place])


@pytest.mark.parametrize("how", ["move", "emit", "add"])
def test_a_reach_is_not_rounded(how: str) -> None:
    near, far = (lambda x: np.float32(x + 0.3125)), (lambda x: np.float32(x + 0.34375))
    for mode in MODES:
        assert Simulation(Far(near, how), people(), mode=mode).run(1).steps == 1
        with pytest.raises(CausalityError, match="further than the velocity"):
            Simulation(Far(far, how), people(), mode=mode).run(1)


@pytest.mark.parametrize("how", ["move", "emit", "add"])
@pytest.mark.parametrize("place", [("x", 0), 5, (1, 2, 3), None])
def test_a_position_that_is_none_is_one_sentence(how: str, place: Any) -> None:
    class Odd(Room):
        def act(self, member: Any) -> None:
            getattr(member, how)(*[place] if how == "move" else ["x", place or "here"])

    with pytest.raises(MetropolisError, match="it should be two numbers"):
        Simulation(Odd(), people()).run(1)


@pytest.mark.parametrize("name", ["perception_radius", "max_velocity", "joint_radius"])
@pytest.mark.parametrize("kind", [np.float32, np.uint8, np.int64])
def test_bounds_are_numbers_of_python(name: str, kind: type) -> None:
    world = Room()
    setattr(world, name, kind(1))
    with pytest.raises(MetropolisError, match=f"{name} is .*; it should be an int or a float"):
        Simulation(world, people())


def test_a_look_in_single_precision_sees_the_same() -> None:
    class Looks(Room):
        perception_radius = 4

        def reset(self, *, seed: int, options: Any) -> list[Entity]:
            return [Entity("ann", (0, 0), "agent"), Entity("bob", (2.1, 0), "agent")]

        def observe(self, view: Any) -> Any:
            return [body.name for body in view.agents(np.float32(2.1))]

        def act(self, member: Any) -> None:
            member.write(near=len(member.agents(np.float32(2.1))))

    found = {Simulation(Looks(), people(), mode=mode).run(4).history_sha256 for mode in MODES}
    assert len(found) == 1
