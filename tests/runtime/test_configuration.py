"""The options of a run: one set of defaults and checks for Python and the command line."""

from __future__ import annotations

import sys
from dataclasses import FrozenInstanceError, fields, replace
from math import inf
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from metropolis.cli.run import command
from metropolis.cli.run_options import RunOptions
from metropolis.runtime.live.configuration import (
    DEFAULTS,
    OPTION_HELP,
    ConfigurationFields,
    RunConfiguration,
)
from metropolis.runtime.live.simulation import Simulation
from metropolis.types import MetropolisError
from metropolis.world.scenario import make_scenario


def test_the_command_line_has_the_same_defaults(tmp_path: Path) -> None:
    given = command.make_context("run", ["minimal"]).params
    options = RunOptions(**{field.name: given[field.name] for field in fields(RunOptions)})
    found = options.configuration(tmp_path, resume=False, trust=False)
    assert found.store == "memory"
    assert found.workers == "1"
    own: dict[str, Any] = {name: getattr(DEFAULTS, name) for name in OWN}
    assert replace(found, **own) == DEFAULTS


OWN = ("out", "about", "store", "workers")
"""Fields that the command line always sets."""


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("mode", "lockstop", "there is no mode 'lockstop' (did you mean 'lockstep'?)"),
        ("rule", "oracle", "there is no rule 'oracle'"),
        ("waste_budget", 10**400, "waste_budget is 1000"),
        ("seed", -1, "seed is -1; it should be a whole number from 0 to"),
        ("resume", True, "resume needs out"),
        ("lease_s", 0.0, "lease_s is 0.0; it should be a number, at least 0.001"),
        ("lease_s", inf, "lease_s is inf; it should be at most 1e+06 seconds"),
        ("workers", "ray3", "workers is 'ray3'; it should be a number from 1 to 1,000,000"),
        ("workers", "ray:", "workers is 'ray:'; it should be a number from 1 to 1,000,000"),
        ("workers", "rey", "workers is 'rey'; it should be a number from 1 to 1,000,000"),
        ("trust", "x", "trust is 'x'; it should be True or False"),
        ("keep_text", 1, "keep_text is 1; it should be True or False"),
        ("resume", None, "resume is None; it should be True or False"),
        ("timeline", "no", "timeline is 'no'; it should be True or False"),
        ("ray_address", " ", "ray_address is ' '; it should be HOST:PORT of a cluster's head"),
        ("ray_address", "a:1", "ray_address is 'a:1', but the workers are not on Ray"),
        ("about", {"a": object()}, "about['a'] is"),
    ],
)
def test_a_wrong_value_is_one_sentence(field: str, value: object, sentence: str) -> None:
    with pytest.raises(MetropolisError) as error:
        RunConfiguration(**{field: value})  # type: ignore[arg-type]
    assert str(error.value).startswith(sentence)


def test_a_simulation_takes_a_configuration_or_its_fields(tmp_path: Path) -> None:
    configuration = RunConfiguration(mode="lockstep", seed=3, out=tmp_path / "run")
    scenario = make_scenario("minimal", seed=3)
    run = Simulation(scenario.world, scenario.agents, None, configuration, seed=4)
    assert run.configuration == replace(configuration, seed=4)
    with pytest.raises(FrozenInstanceError):
        run.configuration.seed = 5  # type: ignore[misc]
    with pytest.raises(TypeError, match="stepz"):
        Simulation(scenario.world, scenario.agents, stepz=4)


@pytest.mark.parametrize(
    ("module", "workers", "sentence"),
    [
        ("hiredis", 1, "the store embedded needs hiredis: pip install 'metropolis[redis]'"),
        ("ray", "ray", "workers on Ray need ray: pip install 'metropolis[ray]'"),
    ],
)
def test_a_missing_extra_is_told_before_a_folder_is_made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    workers: int | str,
    sentence: str,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    scenario, out = make_scenario("minimal"), tmp_path / "run"
    with pytest.raises(MetropolisError) as error:
        Simulation(scenario.world, scenario.agents, store="embedded", workers=workers, out=out)
    assert str(error.value) == sentence
    assert not out.exists()


def test_a_configuration_is_no_dictionary() -> None:
    scenario, how = make_scenario("minimal"), {"mode": "lockstep"}
    sentence = "configuration is {'mode': 'lockstep'}; it should be a metropolis.RunConfiguration"
    with pytest.raises(MetropolisError, match=f"^{sentence}, or None$"):
        Simulation(scenario.world, scenario.agents, configuration=how)  # type: ignore[arg-type]


def test_type_checkers_know_every_field() -> None:
    assert get_type_hints(ConfigurationFields) == get_type_hints(RunConfiguration)


def test_every_field_is_documented() -> None:
    assert set(OPTION_HELP) == {field.name for field in fields(RunConfiguration)}
    page = f"{RunConfiguration.__doc__}"
    assert all(f"{name}: {text}" in page for name, text in OPTION_HELP.items())
