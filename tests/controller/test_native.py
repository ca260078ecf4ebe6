"""Native against reference on larger, more unusual populations than those of test_equality."""

import math
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.controller.base import NO_AGENT, InvariantError
from metropolis.controller.native import NativeController, mined_controller
from metropolis.controller.reference import ReferenceController
from metropolis.rules.metrics import CHEBYSHEV, PLANE_METRICS, Geodesic, Metric
from metropolis.rules.rules import Rule, conservative, lockstep, unordered, versioned
from metropolis.types import Commit, Dispatch, Position
from tests.controller.edges import check_edges
from tests.controller.lookahead import Lookahead

SEEDS = st.integers(0, 2**40)


def drive(
    rule: Rule,
    metric: Metric,
    velocity: float,
    starts: list[Position],
    steps: int,
    random: Random,
    walk: Callable[[int, Position], Position],
    *,
    check_moves: bool = True,
) -> int:
    """Run both controllers side by side; return the largest number of clusters in flight."""
    start = (rule, metric, velocity, starts, steps)
    reference = ReferenceController(*start, check_moves=check_moves)
    native = NativeController.of_rule(*start, check_moves=check_moves)
    at, commits = list(starts), [0] * len(starts)
    pace = [random.choice([0.05, 1, 1, 1, 5]) for _ in starts]
    running: list[Dispatch] = reference.start()
    assert native.start() == running
    widest = 0
    lookahead = Lookahead(native)
    lookahead.check([], running)
    while running:
        widest = max(widest, len(running))
        weights = [pace[dispatch.agents[0]] for dispatch in running]
        dispatch = running.pop(random.choices(range(len(running)), weights)[0])
        for agent in dispatch.agents:
            at[agent] = walk(agent, at[agent])
            commits[agent] += 1
        commit = Commit(dispatch.agents, tuple(at[agent] for agent in dispatch.agents))
        commands = reference.handle([commit])
        assert native.handle([commit]) == commands
        if check_moves:
            lookahead.check([commit], commands)
        assert native.floor == reference.floor
        native.validate()
        running += commands
        at_work = {agent for dispatch in running for agent in dispatch.agents}
        gone = {agent for agent in range(len(at)) if commits[agent] == steps}
        check_edges([reference, native], at_work, gone)
    reference.validate()
    assert reference.finished
    assert native.finished
    return widest


def rules(r: float, v: float) -> list[Rule]:
    return [conservative(r, v), versioned(r, v), versioned(r, v, 0), unordered()]


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_real_positions_on_an_unbounded_plane(seed: int) -> None:
    random = Random(seed)
    metric = random.choice(list(PLANE_METRICS.values()))
    v, r = random.choice([0, 0.3, 1, 2.5]), random.uniform(0, 5)
    centre, spread = random.choice([0, -1e6, 1e8]), random.choice([0, 3, 30, 300])
    drift = (random.uniform(-v, v) / 2, random.uniform(-v, v) / 2)

    def walk(agent: int, p: Position) -> Position:
        length = random.choice([0, 0.5, 0.99]) * (v / 2) / (2 if metric.name == "manhattan" else 1)
        angle = random.uniform(0, 2 * math.pi)
        share = 0.5 if metric.name != "chebyshev" else 1
        dx = length * math.cos(angle) + share * drift[0]
        dy = length * math.sin(angle) + share * drift[1]
        return (p[0] + dx, p[1] + dy)

    starts = [
        (centre + random.uniform(0, spread), random.uniform(0, spread))
        for _ in range(random.randint(1, 25))
    ]
    rule = random.choice(rules(r, v))
    drive(rule, metric, v, starts, random.randint(1, 12), random, walk)


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_rounded_moves(seed: int) -> None:
    """Distances are radii but for the rounding of moves, whose velocity is no whole number."""
    random = Random(seed)
    metric = random.choice(list(PLANE_METRICS.values()))
    v, r = random.choice([0.1, 0.2, 0.3, 0.7, 1 / 3]), random.choice([0.5, 1, 1.5, 2])
    ways = [(0, 0), (v, 0), (-v, 0), (0, v), (0, -v)]

    def walk(agent: int, p: Position) -> Position:
        dx, dy = random.choice(ways)
        to = (p[0] + dx, p[1] + dy)
        return to if metric.within(p, to, 0, v) else p

    starts: list[Position] = [(random.randrange(30) * v, random.randrange(3) * v) for _ in range(8)]
    drive(random.choice(rules(r, v)), metric, v, starts, 40, random, walk)


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_long_skewed_runs(seed: int) -> None:
    """Lagging agents block all others across many levels of the pyramid of minimum steps."""
    random = Random(seed)
    side = random.choice([20, 100, 400])
    starts = [(random.randrange(side), random.randrange(side)) for _ in range(30)]
    movers = random.random()

    def walk(agent: int, p: Position) -> Position:
        if random.random() > movers:
            return p
        return (p[0] + random.choice([-1, 0, 1]), p[1] + random.choice([-1, 0, 1]))

    drive(random.choice(rules(2, 1)), CHEBYSHEV, 1, starts, 40, random, walk)


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_jumps_when_moves_are_not_checked(seed: int) -> None:
    random = Random(seed)
    starts = [(random.randrange(12), random.randrange(12)) for _ in range(random.randint(1, 10))]

    def walk(agent: int, p: Position) -> Position:
        if random.random() < 0.1:
            return (random.randrange(-20, 20), random.randrange(-20, 20))
        return (p[0] + random.choice([-1, 0, 1]), p[1])

    rule = random.choice([*rules(3, 1), lockstep()])
    drive(rule, CHEBYSHEV, 1, starts, 12, random, walk, check_moves=False)


def test_positions_are_compared_again_once_all_agents_have_passed_a_jump() -> None:
    starts = [(0.0, 0.0), (100.0, 0.0)]
    reference = ReferenceController(conservative(3, 1), CHEBYSHEV, 1, starts, 9, check_moves=False)
    reference.start()
    reference.handle([Commit((0,), ((50.0, 0.0),)), Commit((1,), ((52.0, 0.0),))])
    reference.validate()  # at step 1, to which agent 0 has jumped
    reference._running.update({0: (0,), 1: (1,)})  # although they are coupled
    reference.validate()
    reference._running.update({0: (0, 1), 1: (0, 1)})
    reference.handle([Commit((0, 1), ((50.0, 0.0), (52.0, 0.0)))])
    reference.validate()
    reference._running.update({0: (0,), 1: (1,)})
    with pytest.raises(InvariantError, match="coupled but run apart"):
        reference.validate()


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_geodesic_with_many_agents(seed: int) -> None:
    random = Random(seed)
    walls = np.array([[random.random() < 0.3 for _ in range(40)] for _ in range(25)])
    metric = Geodesic(walls, horizon=random.choice([3, 96]))
    floor = [(int(x), int(y)) for y, x in np.argwhere(~walls)]

    def walk(agent: int, p: Position) -> Position:
        moves = [(p[0] + i, p[1] + j) for i, j in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))]
        return random.choice([tile for tile in moves if metric.flaw(tile) is None])

    starts = [random.choice(floor) for _ in range(20)]
    drive(random.choice(rules(2, 1)[:3]), metric, 1, starts, 15, random, walk)


def test_a_crowd_is_one_cluster_and_a_desert_is_many() -> None:
    crowd = [(0, 0)] * 40
    desert = [(100 * i, 0) for i in range(40)]
    rule = conservative(4, 1)
    stay = lambda agent, p: p  # noqa: E731
    assert drive(rule, CHEBYSHEV, 1, crowd, 3, Random(1), stay) == 1
    assert drive(rule, CHEBYSHEV, 1, desert, 3, Random(1), stay) == 40


@pytest.mark.parametrize("make", [ReferenceController, NativeController.of_rule])
def test_an_agent_that_waits_with_a_companion_shows_it(make) -> None:
    """Agents 0 and 1 are coupled at step 1, and agent 2 blocks 1 only."""
    controller = make(conservative(4, 1), CHEBYSHEV, 1, [(0, 0), (5, 0), (11, 0)], 9)
    assert controller.start() == [Dispatch(0, (0, 1)), Dispatch(0, (2,))]
    assert controller.blocked_by().tolist() == [NO_AGENT] * 3
    assert controller.handle([Commit((0, 1), ((0, 0), (5, 0)))]) == []
    assert controller.blocked_by().tolist() == [1, 2, NO_AGENT]


@pytest.mark.parametrize("make", [ReferenceController, NativeController.of_rule])
@pytest.mark.parametrize("rule", [conservative(4, 1), lockstep(), unordered()])
def test_no_agents_and_no_steps(make, rule: Rule) -> None:
    for starts, steps in (([], 5), ([(0, 0)], 0)):
        controller = make(rule, CHEBYSHEV, 1, starts, steps)
        assert controller.start() == []
        assert controller.finished
        assert controller.blocked_by().tolist() == [NO_AGENT] * len(starts)
        controller.validate()


def test_commits_of_one_call_in_any_order() -> None:
    starts = [(0, 0), (7, 0), (14, 0), (30, 0)]
    forward, backward = (
        NativeController.of_rule(conservative(4, 1), CHEBYSHEV, 1, starts, 9) for _ in range(2)
    )
    running = forward.start()
    assert backward.start() == running
    while running:
        commits = [Commit(d.agents, tuple(starts[a] for a in d.agents)) for d in running]
        running = forward.handle(commits)
        assert backward.handle(commits[::-1]) == running


def test_mined_dependencies_synchronise_before_and_after() -> None:
    """Agents 0 and 1 meet at step 1; agent 2 meets no agent."""
    partners = [[], [], [], [1], [0], [], [], [], []]
    offsets = np.cumsum([0, *map(len, partners)])
    controller = NativeController(mined_controller(3, 3, offsets, [1, 0]), 3)
    place = ((0.0, 0.0),)
    assert [d.agents for d in controller.start()] == [(0,), (1,), (2,)]
    assert controller.handle([Commit((2,), place)]) == [Dispatch(1, (2,))]
    assert controller.handle([Commit((0,), place)]) == []
    assert controller.blocked_by().tolist() == [1, NO_AGENT, NO_AGENT]
    assert controller.handle([Commit((1,), place)]) == [Dispatch(1, (0,)), Dispatch(1, (1,))]
    assert controller.handle([Commit((1,), place)]) == []
    assert controller.handle([Commit((0,), place)]) == [Dispatch(2, (0,)), Dispatch(2, (1,))]
    controller.validate()
    assert controller.floor == 1
