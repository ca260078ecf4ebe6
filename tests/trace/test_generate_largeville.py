"""Towns side by side, the command line, and the shipped trace."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from metropolis.llm.model_choice import ModelChoice
from metropolis.trace.generate.calls import generate_calls
from metropolis.trace.generate.largeville import generate, tile
from metropolis.trace.generate.movement import generate_movement
from metropolis.trace.parquet import read_trace
from metropolis.trace.schema import Trace
from metropolis.trace.validate import validate
from metropolis.types import MetropolisError
from tests.commands import Command

SHIPPED = Path(__file__).parents[2] / "traces" / "alderbrook-11-13h.parquet"
COLUMNS = ("step", "prompt_tokens", "output_tokens", "prefix_tokens")


def town(trace: Trace, k: int, agents: int = 25) -> Trace:
    """Town k of a tiled trace, moved back to the west."""
    first = k * agents
    calls = trace.calls.keep((trace.calls.agent >= first) & (trace.calls.agent < first + agents))
    assert trace.meta.map is not None
    width = trace.meta.map.width * agents // trace.agents
    positions = trace.positions[:, first : first + agents] - np.array([k * width, 0], np.float32)
    return Trace(trace.meta, positions, calls)


def recorded(trace: Trace) -> Trace:
    """The same, labelled as if it had been recorded."""
    return replace(
        trace, meta=replace(trace.meta, movement_origin="recorded", calls_origin="recorded")
    )


def names(trace: Trace) -> list[str]:
    return [trace.calls.functions[f] for f in trace.calls.function]


@pytest.fixture(scope="module")
def lunch() -> Trace:
    return generate(25, (11, 13), 3)


def test_recorded_towns_are_copied_and_shifted(lunch: Trace) -> None:
    source = recorded(lunch)
    tiled = tile([source], 75, seed=4, shift_s=600)
    validate(tiled, "tiled")
    assert len(set(tiled.meta.agents)) == 75
    assert tiled.meta.agents[25] == f"{source.meta.agents[0]} #2"
    for k in range(3):
        copy = town(tiled, k)
        shifts = [
            later
            for later in range(-60, 61, 30)
            if (copy.positions[60:660] == source.positions[60 - later : 660 - later]).all()
        ]
        assert shifts
        later = shifts[0]
        assert later == 0 or k > 0
        here = (copy.calls.step >= 60) & (copy.calls.step < 660)
        there = (source.calls.step + later >= 60) & (source.calls.step + later < 660)
        one, other = copy.calls.keep(here), source.calls.keep(there)
        np.testing.assert_array_equal(one.step, other.step + later)
        for name in COLUMNS[1:]:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        np.testing.assert_array_equal(one.parents, other.parents)
        np.testing.assert_array_equal(one.agent - k * 25, other.agent)
    prefixes = [set(town(tiled, k).calls.prefix_id.tolist()) for k in range(3)]
    assert not prefixes[0] & prefixes[1]
    assert not prefixes[1] & prefixes[2]


def test_generated_towns_live_their_own_days(lunch: Trace) -> None:
    tiled = tile([lunch], 50, seed=1)
    validate(tiled, "tiled")
    one, other = town(tiled, 0), town(tiled, 1)
    np.testing.assert_array_equal(one.positions, lunch.positions)
    assert (one.positions != other.positions).any()
    assert names(one) != names(other)
    for copy in (one, other):
        busy = copy.calls.keep(copy.calls.step >= 360)
        assert len(busy) == pytest.approx(5000, rel=0.15), "the busy hour stays busy"
    own = [set(c.calls.prefix_id.tolist()) for c in (one, other)]
    assert max(own[0] & own[1]) < len(tiled.calls.functions), "functions begin alike, agents differ"


def test_generated_calls_keep_their_models(lunch: Trace) -> None:
    choice = ModelChoice("small", {"task_decomp": "large"}, {lunch.meta.agents[2]: "own"})
    tiled = tile([choice.applied_to(lunch)], 50, seed=1)
    for k in range(2):
        calls = town(tiled, k).calls
        own = calls.agent == k * 25 + 2
        is_task = calls.function == calls.functions.index("task_decomp")
        model = np.array(calls.models)[calls.model]
        assert {*model[own]} == {"own"}
        assert {*model[is_task & ~own]} == {"large"}
        assert {*model[~is_task & ~own]} == {"small"}


def test_arenas_and_walls_of_towns_are_apart(lunch: Trace) -> None:
    tiled = tile([lunch], 50)
    grid, own = tiled.meta.map, lunch.meta.map
    assert grid is not None
    assert own is not None
    assert grid.width == 2 * own.width
    np.testing.assert_array_equal(grid.walls[:, own.width :], own.walls)
    west, east = np.unique(grid.arenas[:, : own.width]), np.unique(grid.arenas[:, own.width :])
    assert set(west) & set(east) == {0}
    assert grid.arena_names[east[-1]] == f"{own.arena_names[-1]} #2"


def test_towns_take_turns(lunch: Trace) -> None:
    other = recorded(generate(25, (11, 13), 8))
    tiled = tile([recorded(lunch), other], 60)
    assert tiled.agents == 60
    np.testing.assert_array_equal(tiled.positions[:, :25], lunch.positions)
    offset = np.array([140, 0], np.float32)
    np.testing.assert_array_equal(tiled.positions[:, 25:50], other.positions + offset)
    first_calls = [part.calls.keep(part.calls.agent < 25) for part in (tiled, lunch)]
    for name in COLUMNS:
        np.testing.assert_array_equal(*(getattr(calls, name) for calls in first_calls))


def test_tiling_is_seeded(lunch: Trace) -> None:
    one, same, other = (tile([lunch], 50, seed=seed, hours=(12, 13)) for seed in (1, 1, 2))
    assert one.steps == 360
    np.testing.assert_array_equal(one.positions, same.positions)
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(one.calls, name), getattr(same.calls, name))
    assert (one.positions != other.positions).any()


def test_a_second_town_does_not_change_the_first() -> None:
    one, two = generate(25, (6, 7), 9), generate(40, (6, 7), 9)
    validate(two, "generated")
    assert two.agents == 40
    np.testing.assert_array_equal(two.positions[:, :25], one.positions)
    of_first = two.calls.keep(two.calls.agent < 25)
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(of_first, name), getattr(one.calls, name))


def test_traces_must_fit_together(lunch: Trace) -> None:
    with pytest.raises(MetropolisError, match="steps; beside"):
        tile([lunch, lunch.window(0, 100)], 50)
    with pytest.raises(MetropolisError, match=r"perception_radius is 8\.0; it should be 4\.0"):
        tile([lunch, generate(25, (11, 13), 3, radius=8)], 50)
    with pytest.raises(MetropolisError, match="at least 1"):
        tile([lunch], 0)
    nameless = replace(lunch, meta=replace(lunch.meta, name=""))
    with pytest.raises(MetropolisError) as error:
        tile([nameless], 25, hours=(14, 15))
    assert str(error.value) == (
        "the trace without a name lacks hours: 14-15 is not within the trace, which covers 11-13"
    )
    with pytest.raises(MetropolisError, match="has 100 steps; beside the trace without a name it"):
        tile([nameless, lunch.window(0, 100)], 50)
    assert tile([nameless], 50).meta.name == "x 2"


@pytest.fixture
def run(metropolis: Command) -> Command:
    """Run `metropolis trace …`."""
    return partial(metropolis, "trace")


def test_command_line(run: Command, tmp_path: Path) -> None:
    day, again, big = (tmp_path / f"{name}.parquet" for name in ("day", "again", "big"))
    said = run("generate", "--agents", 5, "--hours", "8-9", "--seed", 2, "--out", day).result
    assert "5 agents, 360 steps, generated movement" in said
    assert "generated calls" in said
    assert run("generate", "--movement", day, "--seed", 2, "--out", again).result
    np.testing.assert_array_equal(read_trace(day).positions, read_trace(again).positions)
    assert "15 agents" in run("tile", day, again, "--copies", 3, "--out", big).result
    assert "12 agents" in run("tile", day, "--agents", 12, "--out", big).result
    assert read_trace(big).meta.map.width == 3 * 140  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("generate --hours 13-12", "'13-12' ends before it begins"),
        ("generate --hours 1e9-1.1e9", "'1e9-1.1e9' is not a range of hours"),
        ("generate --hours nan-3", "'nan-3' is not a range of hours"),
        ("generate --hours noon", "'noon' is not a range of hours"),
        ("generate --hours 8-8.001", "8-8.001: are shorter than a step of 10 s"),
        ("generate --radius 0", "0.0 is not in the range"),
        ("generate --radius nan", "nan is not in the range"),
        ("generate --radius inf", "inf is not in the range"),
        ("generate --agents 1000001", "1000001 is not in the range"),
        ("generate --movement x --agents 3", "--radius do not go with --movement"),
        ("tile x", "give either --copies or --agents"),
        ("tile x --copies 2 --agents 3", "give either --copies or --agents"),
        ("tile x --copies 1000000000", "1000000000 is not in the range"),
        ("tile x --copies 2 --shift-s nan", "nan is not in the range"),
        ("tile x --copies 2 --shift-s inf", "inf is not in the range"),
        ("tile x --copies 2 --shift-s 1e12", "1000000000000.0 is not in the range"),
    ],
)
def test_wrong_options_are_one_sentence(run: Command, arguments: str, sentence: str) -> None:
    assert sentence in run(*arguments.split(), "--out", "nowhere").refusal


def test_tiles_shorter_than_a_step_and_too_many_copies(run: Command, tmp_path: Path) -> None:
    day = tmp_path / "day.parquet"
    assert run("generate", "--agents", 2, "--hours", "8-8.1", "--out", day).result
    for options, part in (
        (("--copies", 2, "--hours", "8-8.001"), "shorter than a step"),
        (("--copies", 600_000), "1200000 agents; it should be at most 1000000"),
    ):
        assert part in run("tile", day, *options, "--out", tmp_path / "out").refusal


def test_shipped_trace_is_what_its_recipe_makes() -> None:
    shipped, made = read_trace(SHIPPED), generate(25, (11, 13), 1)
    assert SHIPPED.stat().st_size < 1_000_000
    np.testing.assert_array_equal(shipped.positions, made.positions)
    assert shipped.meta.agents == made.meta.agents
    assert names(shipped) == names(made)
    for name in (*COLUMNS, "agent", "prefix_id", "parents"):
        np.testing.assert_array_equal(getattr(shipped.calls, name), getattr(made.calls, name))


def test_calls_need_only_positions() -> None:
    """A recording without a map gets calls too."""
    bare = recorded(generate_movement(8, (9, 10), 1))
    trace = generate_calls(replace(bare, meta=replace(bare.meta, map=None)), 0)
    validate(tile([trace], 20), "tiled")
