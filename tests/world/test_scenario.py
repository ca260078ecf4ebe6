"""Worlds are found by name; randomness by seed, agent and step."""

import json
import re
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from metropolis.policy.named import POLICIES, named
from metropolis.types import MetropolisError
from metropolis.world.randomness import keyed_random
from metropolis.world.scenario import GROUP, make_scenario, scenario_names
from metropolis.world.scenario_options import parse_options
from metropolis.world.user_code import load_function
from metropolis.worlds.smallville.resident import Resident
from metropolis.worlds.smallville.settings import PRESETS


def test_a_name_that_is_not_there() -> None:
    assert scenario_names()
    with pytest.raises(MetropolisError) as refusal:
        make_scenario("atlantis")
    assert str(refusal.value) == (
        f"there is no world 'atlantis'; there are {', '.join(scenario_names())}; FILE.py with a "
        "function make and the folder of a world are also accepted"
    )


def install(folder: Path, name: str, points: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the module `name` in `folder` an installed package with entry points of worlds."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\n{points}")
    monkeypatch.syspath_prepend(str(folder))


def test_errors_of_an_installed_world_are_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "isle.py"
    file.write_text("def make(*, agents, seed): return [][seed]\n\n\ndef bare(): pass\n")
    points = "isle = isle:make\nbare = isle:bare\nsunk = isle.sunk:make\n"
    install(tmp_path, "isle", points, monkeypatch)
    for name, sentence in (
        ("isle", f"{file}:1: IndexError: list index out of range; fix it there"),
        ("bare", "the entry point bare = 'isle:bare': got an unexpected keyword argument 'agents'"),
        ("sunk", "the entry point sunk = 'isle.sunk:make': ModuleNotFoundError: No module named"),
    ):
        with pytest.raises(MetropolisError, match=re.escape(sentence)):
            make_scenario(name)


def test_an_installed_world_may_be_a_partial_function_or_a_callable_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "islet.py").write_text(
        """from __future__ import annotations
from functools import partial
from datetime import date
from metropolis.worlds.minimal import make

def on(*, agents, seed, day: date = date(2023, 2, 13), size=3):
    assert isinstance(day, date)
    return make(agents=size, seed=seed)

class Isle:
    def __call__(self, *, agents, seed, day: date = date(2023, 2, 13)):
        return on(agents=agents, seed=seed, day=day)

small, isle = partial(on, size=2), Isle()
"""
    )
    install(tmp_path, "islet", "small = islet:small\nislet = islet:isle\n", monkeypatch)
    for name, agents in (("small", 2), ("islet", 3)):
        assert len(make_scenario(name, options={"day": "2023-02-14"}).agents) == agents


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
        ({"name": ""}, "the world is ''; it should be a name, a folder, or FILE.py:FUNCTION"),
        ({"name": "minimal", "agents": 0}, "agents is 0; it should be a whole number, at least 1"),
        ({"name": "minimal", "agents": -1}, "agents is -1; it should be a whole number, at least"),
        ({"name": "minimal", "options": 3}, "options is 3; it should be a dictionary, or None"),
        ({"name": "minimal", "seed": None}, "seed is None; it should be a whole number"),
    ],
)
def test_arguments_of_a_wrong_type_are_told(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MetropolisError, match=re.escape(sentence)):
        make_scenario(**given)


def test_numbers_of_numpy_are_whole_numbers() -> None:
    made = make_scenario("minimal", agents=np.int32(3), seed=np.uint8(7), options=None)  # type: ignore[arg-type]
    assert made.world.reset(seed=7, options={}) == make_scenario("minimal", agents=3).world.reset(
        seed=7, options={}
    )
    assert type(replace(made, steps=np.int64(9)).steps) is int


@pytest.mark.parametrize("world", ["smallville", "largeville", "city"])
def test_the_preset_of_residents_is_an_option_of_their_worlds(world: str) -> None:
    for preset in ("paper", "code-1.0"):
        made = make_scenario(world, agents=2, options={"preset": preset})
        for one in made.agents:
            assert isinstance(one, Resident)
            assert one.settings == PRESETS[preset]


MADE = """
from __future__ import annotations
from datetime import datetime
from pathlib import Path
from metropolis.worlds.minimal import make as minimal

made = []

def make(agents, seed, *, size: int = 3, at: datetime | None = None, plain="", loud: bool = False):
    made.append((size, at, plain, loud))
    return minimal(agents=agents, seed=seed)

def unreadable(agents, seed, size: Nowhere = 3):
    return minimal()
"""


def test_texts_of_options_become_values_of_the_types_of_parameters(tmp_path: Path) -> None:
    file = tmp_path / "optional_town.py"
    file.write_text(MADE)
    texts = ["size=12", "at=2023-02-13T06:00:00", "plain=a=b", "loud=true"]
    make_scenario(file, options=parse_options(texts))
    make_scenario(file, options={"size": 7, "loud": True})
    made = sys.modules["optional_town"].made
    assert made == [(7, None, "", True)]  # the file is loaded again for each scenario
    make_scenario(file, options=parse_options(texts))
    made = sys.modules["optional_town"].made
    assert made == [(12, datetime(2023, 2, 13, 6), "a=b", True)]


UNEVALUATED = "" if sys.version_info >= (3, 14) else "from __future__ import annotations"
"""What makes annotations that are evaluated when they are needed."""
TYPED = f"""
{UNEVALUATED}
from typing import TYPE_CHECKING
from metropolis.policy.fixed import Fcfs
from metropolis.worlds.minimal import make as minimal

if TYPE_CHECKING:
    from metropolis.world.scenario import Scenario

def make(agents: int, seed: int, size: int = 3, given: Scenario | None = None) -> Scenario:
    assert size == 12
    return minimal(agents=agents, seed=seed)

class Mine(Fcfs):
    def __init__(self, weight: int = 3, scenario: Scenario | None = None) -> None:
        super().__init__()
"""


def test_annotations_may_name_what_only_type_checkers_import(tmp_path: Path) -> None:
    file = tmp_path / "typed_town.py"
    file.write_text(TYPED)
    assert len(make_scenario(file, agents=3, options={"size": "12"}).agents) == 3
    named(POLICIES, f"{file}:Mine:weight=4")()


@pytest.mark.parametrize(
    ("function", "option", "sentence"),
    [
        ("make", "sise=12", "has no option 'sise' (did you mean 'size'?); it has size, at, plain"),
        ("make", "seed=12", "has no option 'seed'; it has size, at, plain, loud"),
        ("make", "size=many", "its option 'size' is 'many'; it should be of type int (Expected"),
        (
            "make",
            "at=yesterday",
            "its option 'at' is 'yesterday'; it should be of type datetime.datetime | None, such "
            "as 2023-02-13T06:00:00 (",
        ),
        ("make", "loud=perhaps", "its option 'loud' is 'perhaps'; it should be of type bool ("),
        ("unreadable", "size=3", "the types of its options cannot be read (name 'Nowhere' is"),
    ],
)
def test_options_that_a_world_lacks_are_told(
    tmp_path: Path, function: str, option: str, sentence: str
) -> None:
    file = tmp_path / "optional_town.py"
    file.write_text(MADE)
    with pytest.raises(MetropolisError, match=re.escape(sentence)):
        make_scenario(f"{file}:{function}", options=parse_options([option]))


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["size"], "--world-option is 'size'; it should be NAME=VALUE"),
        (["=3"], "--world-option is '=3'; it should be NAME=VALUE"),
        (["size=3", "size=4"], "--world-option names 'size' twice"),
    ],
)
def test_options_have_a_form(texts: list[str], sentence: str) -> None:
    with pytest.raises(MetropolisError, match=re.escape(sentence)):
        parse_options(texts)


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
