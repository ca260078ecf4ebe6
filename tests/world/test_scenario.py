"""Worlds are found by name; randomness by seed, agent and step."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metropolis.types import MetropolisError
from metropolis.world.randomness import keyed_random
from metropolis.world.scenario import make_scenario, scenario_names
from metropolis.world.user_code import load_function


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


def test_a_file_does_not_replace_an_installed_module(tmp_path: Path) -> None:
    for name, module in (("json.py", json), ("msgspec.py", msgspec)):
        path = tmp_path / name
        path.write_text("def make():\n    pass\n")
        with pytest.raises(MetropolisError, match=f"{name} has the name of an installed module"):
            load_function(f"{path}:make", "makes a scenario")
        assert sys.modules[path.stem] is module
    path = path.rename(tmp_path / "faulty_town.py")
    path.write_text("1 / 0\n")
    before = [*sys.path]
    for _ in range(2):
        with pytest.raises(MetropolisError, match="ZeroDivisionError"):
            load_function(f"{path}:make", "makes a scenario")
    assert "faulty_town" not in sys.modules
    assert sys.path == [f"{tmp_path}", *before]
