"""`metropolis world check`."""

import pytest
from click.testing import CliRunner

from metropolis.cli.world_check import check_command
from metropolis.runtime.checks import check_world
from metropolis.types import MetropolisError
from tests.world.planted import SharesADict, yard


def test_a_sound_world() -> None:
    result = CliRunner().invoke(check_command, ["minimal", "--seeds", "1", "--steps", "6"])
    assert (result.exit_code, result.exception) == (0, None)
    assert result.output == (
        "nothing found in 6 steps for 1 seeds: lockstep three times, 3 random schedules under each "
        "rule, and once saved and resumed\n"
    )


def test_an_unsound_world(monkeypatch: pytest.MonkeyPatch) -> None:
    made = lambda name, agents, seed: yard(SharesADict)  # noqa: E731
    monkeypatch.setattr(check_world, "make_scenario", made)
    result = CliRunner().invoke(check_command, ["yard", "--seeds", "1"])
    assert result.exit_code == 1
    assert result.output.startswith("state: seed 0, step 0: the world's attribute 'visits' changed")


def test_a_world_that_is_not_there() -> None:
    result = CliRunner().invoke(check_command, ["atlantis"])
    assert isinstance(result.exception, MetropolisError)
