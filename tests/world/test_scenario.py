"""Worlds are found by name; randomness by seed, agent and step."""

import pytest

from metropolis.types import MetropolisError
from metropolis.world.randomness import keyed_random
from metropolis.world.scenario import make_scenario, scenario_names


def test_a_name_that_is_not_there() -> None:
    assert scenario_names()
    with pytest.raises(MetropolisError) as refusal:
        make_scenario("atlantis")
    assert str(refusal.value) == (
        f"there is no world 'atlantis'; there are {', '.join(scenario_names())}, and a Python "
        "file with a function make is accepted too"
    )


def test_draws_are_their_own() -> None:
    keys = [
        (seed, agent, step, purpose)
        for seed in (0, 1)
        for agent in ("ann", "bob")
        for step in (0, 1, 11)
        for purpose in ("View", "Agent")
    ]
    draws = {key: keyed_random(*key).random() for key in keys}
    assert len(set(draws.values())) == len(keys)
    assert draws == {key: keyed_random(*key).random() for key in reversed(keys)}
    assert keyed_random(0, "ann", 0, "View").random() == 0.7833582643870188
