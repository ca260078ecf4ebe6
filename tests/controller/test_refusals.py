"""Bad input gets one clear sentence, the same from both controllers, and changes nothing."""

import math

import numpy as np
import pytest

from metropolis.controller.base import InvariantError
from metropolis.controller.native import NativeController, mined_controller, value_controller
from metropolis.controller.reference import ReferenceController
from metropolis.rules.metrics import CHEBYSHEV
from metropolis.rules.rules import Rule, conservative, lockstep
from metropolis.trace.schema import ValueDependencies
from metropolis.types import Commit, Dispatch, MetropolisError

BOTH = pytest.mark.parametrize("make", [ReferenceController, NativeController.of_rule])
STARTS = [(0, 0), (1, 0), (50, 0)]


@BOTH
@pytest.mark.parametrize(
    ("commit", "sentence"),
    [
        (Commit((7,), ((0, 0),)), "agent 7 is not running; commit exactly what was dispatched"),
        (Commit((-1,), ((0, 0),)), "agent -1 is not running; commit exactly what was dispatched"),
        (
            Commit((0,), ((0, 0),)),
            "agent 0 was dispatched in the cluster 0, 1 and committed in 0; "
            "commit exactly what was dispatched",
        ),
        (
            Commit((0, 1, 2), ((0, 0), (1, 0), (50, 0))),
            "agent 0 was dispatched in the cluster 0, 1 and committed in 0, 1, 2; "
            "commit exactly what was dispatched",
        ),
        (
            Commit((1, 0), ((1, 0), (0, 0))),
            "agent 1 was dispatched in the cluster 0, 1 and committed in 1, 0; "
            "commit exactly what was dispatched",
        ),
        (
            Commit((2,), ((50, 1.5),)),
            "agent 2 moved from (50, 0) to (50, 1.5) at step 0, further than the velocity 1",
        ),
        (
            Commit((2,), ((math.nan, 0),)),
            "agent 2 cannot stand at (nan, 0): its coordinates must lie within ±1e+09",
        ),
        (
            Commit((0, 1), ((0, 0),)),
            "a commit of 2 agents carries 1 positions; "
            "it needs at least one agent and one position for each",
        ),
        (
            Commit((), ()),
            "a commit of 0 agents carries 0 positions; "
            "it needs at least one agent and one position for each",
        ),
    ],
)
def test_commits(make, commit: Commit, sentence: str) -> None:
    controller = make(conservative(4, 1), CHEBYSHEV, 1, STARTS, 2)
    assert controller.start() == [Dispatch(0, (0, 1)), Dispatch(0, (2,))]
    with pytest.raises(MetropolisError) as error:
        controller.handle([commit])
    assert str(error.value) == sentence
    controller.validate()
    assert controller.handle([Commit((2,), ((50, 1),))]) == [Dispatch(1, (2,))]


@BOTH
def test_a_refused_jump_changes_nothing(make) -> None:
    """Agent 2 is too close for its lead, which validation overlooks only after a jump."""
    starts = [(0, 0), (1, 0), (2, 0)]
    controller = make(
        conservative(4, 1), CHEBYSHEV, 1, starts, 9, steps=[0, 0, 5], check_moves=False
    )
    controller.start()
    for _ in range(2):
        with pytest.raises(InvariantError, match="too close"):
            controller.validate()
        with pytest.raises(MetropolisError, match="agent 1 cannot stand at"):
            controller.handle([Commit((0, 1), ((90, 0), (math.nan, 0)))])


@BOTH
def test_a_second_commit_of_the_same_step(make) -> None:
    controller = make(conservative(4, 1), CHEBYSHEV, 1, STARTS, 1)
    controller.start()
    commit = Commit((2,), ((50, 0),))
    assert controller.handle([commit]) == []
    with pytest.raises(MetropolisError, match="agent 2 is not running"):
        controller.handle([commit])


@BOTH
@pytest.mark.parametrize("rule", [conservative(4, 1), lockstep()])
def test_a_second_start(make, rule: Rule) -> None:
    controller = make(rule, CHEBYSHEV, 1, STARTS, 2)
    running = controller.start()
    with pytest.raises(MetropolisError, match="the controller has been started before"):
        controller.start()
    controller.validate()
    stay = [Commit(one.agents, tuple(STARTS[agent] for agent in one.agents)) for one in running]
    assert controller.handle(stay) == [Dispatch(1, one.agents) for one in running]


@BOTH
def test_commands_of_commits_before_a_refused_one_come_later(make) -> None:
    controller = make(conservative(4, 1), CHEBYSHEV, 1, STARTS, 2)
    controller.start()
    with pytest.raises(MetropolisError, match="agent 9 is not running"):
        controller.handle([Commit((2,), ((50, 0),)), Commit((9,), ((50, 0),))])
    commands = controller.handle([Commit((0, 1), ((0, 0), (1, 0)))])
    assert commands == [Dispatch(1, (0, 1)), Dispatch(1, (2,))]


@BOTH
@pytest.mark.parametrize("rule", [conservative(4, 1), lockstep()])
def test_lockstep_and_rules_check_moves_equally(make, rule: Rule) -> None:
    controller = make(rule, CHEBYSHEV, 1, [(0, 0)], 2)
    controller.start()
    with pytest.raises(MetropolisError, match=r"moved from \(0, 0\) to \(3, 0\) at step 0"):
        controller.handle([Commit((0,), ((3, 0),))])


@BOTH
@pytest.mark.parametrize(
    ("velocity", "starts", "steps", "sentence"),
    [
        (-1, STARTS, 1, "the velocity is -1; it must be finite and >= 0"),
        (math.inf, STARTS, 1, "the velocity is inf; it must be finite and >= 0"),
        (1, STARTS, -3, "the target step is -3; it must be >= 0"),
        (1, [(0, 0), (0, 2e9)], 1, "agent 1 cannot stand at .*: its coordinates must lie within"),
    ],
)
def test_starts(make, velocity, starts, steps, sentence: str) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        make(conservative(4, 1), CHEBYSHEV, velocity, starts, steps)


def test_dependencies() -> None:
    with pytest.raises(MetropolisError, match=r"2 agents over 3 steps need agents \* steps \+ 1"):
        mined_controller(3, 2, [0, 1], [1])


@pytest.mark.parametrize("ago", [[0], [], [1, 1]])
def test_dependencies_by_value(ago: list[int]) -> None:
    offsets, writer = np.array([0, 0, 0, 1, 1, 1, 1]), np.array([1], np.int32)
    value_controller(3, 2, ValueDependencies(offsets, writer, np.array([1], np.int32)))
    with pytest.raises(MetropolisError, match=r"below the number of agents, at least one step ago"):
        value_controller(3, 2, ValueDependencies(offsets, writer, np.array(ago, np.int32)))
