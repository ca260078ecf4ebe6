"""The state of a run at a step equals that of a rerun, and reading it changes no file."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.llm.backends.scripted import Scripted
from metropolis.runtime.reruns.state_at import state_at
from metropolis.types import MetropolisError
from metropolis.world.saving import save
from tests.runtime.test_fork import STEPS, Town, files, lived
from tests.runtime.walkers import author


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1 << 20), at=st.integers(0, STEPS))
def test_the_state_equals_that_of_a_shorter_run(
    tmp_path_factory: pytest.TempPathFactory, seed: int, at: int
) -> None:
    folder, town = tmp_path_factory.mktemp("run"), Town(seed)
    lived(town, folder / "long", **Random(seed).choice([{"checkpoint_wall_s": 0}, {}]))
    before = files(folder)
    found = state_at(folder / "long", *town.parts(), at)
    assert files(folder) == before
    assert found.step == at
    short = town.run(folder / "short", backend=Scripted(author), mode="lockstep")
    if at:
        short.run(at)
        world, agents = town.parts()
        expected = state_at(folder / "short", world, agents)
        assert (found.entities, found.events) == (expected.entities, expected.events)
        assert found.agents == expected.agents
    else:
        assert found.agents == {agent.name: save(agent) for agent in town.parts()[1]}
    with pytest.raises(MetropolisError, match="0 to 20, not 21"):
        state_at(folder / "long", *town.parts(), STEPS + 1)
