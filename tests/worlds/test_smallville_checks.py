"""The checks of `examples/smallville_health.py`: their bounds, and the preset of the residents."""

from __future__ import annotations

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from metropolis.cli import fork, run

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "smallville_health.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = spec_from_file_location("smallville_health", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("figure", "passing", "failing"),
    [
        ("walls_crossed", [0], [1]),
        ("tiles_shared_by_day", [0, 0.045, 0.06], [0.061, 0.168]),
        ("empty_plans", [0], [1]),
        ("duplicate_memories", [0], [1]),
        ("duplicates_recalled", [0.0], [0.001]),
        ("texts_rated_again", [0.0, 0.6], []),
        ("sleep_hours", [6.2, 7.2, 8.5], [6.1, 8.6, 0, 24]),
        ("work_hours", [2, 3.5, 6.3], [0, 1.9, 6.4, 24]),
        ("later_conversations", [0.9, 1.3], [0.89, 0]),
        ("last_conversations", [0.8, 1.3], [0.79, 0]),
        ("distinct_sentences", [0.01, 1], []),
        ("later_sentences", [0.9, 1.3], [0.89, 0]),
        ("news_heard", [1, 80], [0]),
    ],
)
def test_the_bounds_of_checks(
    example: ModuleType, figure: str, passing: list[float], failing: list[float]
) -> None:
    assert all(example.passes(figure, found) for found in (*passing, None))
    assert not any(example.passes(figure, found) for found in failing)


def test_the_status_is_that_of_the_checks(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = dict.fromkeys(example.CHECKS) | {"agents": 25, "hours": 1}
    day = dict.fromkeys(("day", "hours", "calls", "conversations", "news_heard"), 1)
    day |= {"sleep_hours": 1, "work_hours": 1, "distinct_sentences": 1, "knowing": {}}
    for crossed in (0, 3):
        report = found | {"walls_crossed": crossed, "days": [day]}
        monkeypatch.setattr(example, "live", lambda report=report: report)
        assert example.main([]) == (crossed > 0)
        assert ("FAILS" in capsys.readouterr().out) == (crossed > 0)


@pytest.mark.parametrize(("preset", "again"), [("paper", False), ("code-1.0", True)])
def test_residents_have_the_settings_of_the_preset(
    example: ModuleType, preset: str, again: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    example.main(["7", "--preset", preset, "--json"])
    assert (json.loads(capsys.readouterr().out)["texts_rated_again"] > 0) == again


@pytest.mark.parametrize("given", [["--preset", "paper"], ["3"], ["--seed", "1"]])
def test_a_run_has_its_own_options(
    example: ModuleType, tmp_path: Path, given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        example.main(["--run", str(tmp_path), *given])
    assert "leave out HOURS, --seed and --preset" in capsys.readouterr().err


def test_only_a_run_of_the_town_from_its_beginning_is_examined(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    town, branch, other = (str(tmp_path / name) for name in ("town", "branch", "other"))
    for command, words in (
        (run.command, ["smallville", "--agents", "2", "--steps", "2", "--out", town]),
        (fork.command, [town, "--at", "1", "--steps", "2", "--out", branch]),
        (run.command, ["minimal", "--agents", "2", "--steps", "1", "--out", other]),
    ):
        assert CliRunner().invoke(command, words).exit_code == 0
    assert example.main(["--run", town]) == 0
    for folder, reason in (
        (branch, f"is a branch that begins at step 1; use the original run, {town}"),
        (other, "is a run of minimal, not of smallville"),
        (str(tmp_path / "nothere"), "nothere"),
    ):
        with pytest.raises(SystemExit) as ended:
            example.main(["--run", folder])
        assert ended.value.code == 2
        assert reason in capsys.readouterr().err
