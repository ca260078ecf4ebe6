"""Worlds are found by name; randomness by seed, agent and step."""

import re
from typing import Any

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
        "file with a function make is also accepted"
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


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"name": lambda: None}, "it should be a name, a folder, or FILE.py:FUNCTION as text"),
        ({"name": 3}, "the world is 3; it should be a name"),
        ({"name": "minimal", "agents": "5"}, "agents is '5'; it should be a whole number"),
        ({"name": "minimal", "agents": 2.5}, "agents is 2.5; it should be a whole number"),
        ({"name": "minimal", "seed": None}, "seed is None; it should be a whole number"),
    ],
)
def test_arguments_of_a_wrong_type_are_told(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MetropolisError, match=re.escape(sentence)):
        make_scenario(**given)
