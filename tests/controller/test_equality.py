"""The law of the project: whatever the rule, history is equal to lockstep's, value for value.

And native returns what the reference returns, command for command, while both are validated after
every event.
"""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.controller.native import NativeController, mined_controller
from metropolis.controller.reference import ReferenceController
from metropolis.rules.rules import Rule, conservative, lockstep, versioned
from metropolis.types import Commit
from tests.controller.edges import check_edges
from tests.controller.worlds import (
    History,
    Plain,
    State,
    Versioned,
    World,
    execute,
    proceed,
    random_world,
)

SEEDS = st.integers(0, 2**40)


def run(world: World, rule: Rule, state: State) -> History:
    start = (rule, world.metric, world.max_velocity, world.starts, world.steps)
    controllers = [ReferenceController(*start), NativeController.of_rule(*start)]
    return execute(world, controllers, state, Random(world.seed))


class _Daring(NativeController):
    def clear_until(self, agent: int) -> int:
        return min(super().clear_until(agent) + 1, self._target)


def with_longer_lookahead(world: World) -> History:
    rule = conservative(world.perception_radius, world.max_velocity)
    start = (rule, world.metric, world.max_velocity, world.starts, world.steps)
    return execute(world, [_Daring.of_rule(*start)], Plain(world.starts), Random(world.seed))


def in_lockstep(world: World) -> History:
    return run(world, lockstep(), Plain(world.starts))


def in_conservative(world: World, looser: float = 0) -> History:
    rule = conservative(world.perception_radius, world.max_velocity)
    rule = Rule(rule.couple_radius - looser, rule.block_radius - looser)
    return run(world, rule, Plain(world.starts))


def in_versioned(world: World, looser: float = 0) -> History:
    rule = versioned(world.perception_radius, world.max_velocity, world.joint_radius)
    rule = Rule(rule.couple_radius - looser, rule.block_radius - looser)
    return run(world, rule, Versioned(world.starts))


def check_law(seed: int) -> None:
    world = random_world(seed)
    expected = in_lockstep(world)
    assert in_conservative(world) == expected, world
    assert in_versioned(world) == expected, world


def by_dependency(seed: int) -> tuple[History, History]:
    """Histories of lockstep and of a run ordered only by true dependencies (reads of writes)."""
    world = random_world(seed, meets=False)
    state = Versioned(world.starts)
    agents = range(len(world.starts))
    expected: History = {}
    writers: dict[tuple[tuple[int, int], int], set[int]] = {}
    partners: list[list[int]] = []
    for step in range(world.steps):
        for a in agents:
            read = [(t, state.newest(t, step)) for t in world.perceived(state.position(a, step))]
            partners.append(sorted(set().union(*(writers.get(key, set()) for key in read)) - {a}))
        for a in agents:
            outcome = proceed(world, state, step, [a])
            expected[step, a] = (outcome.intents[a], outcome.positions[a])
            state.move(a, step, outcome.positions[a])
            for tile, value in outcome.writes.items():
                state.write(tile, step, value)
                writers.setdefault((tile, step), set()).add(a)
    offsets = np.cumsum([0, *map(len, partners)])
    listed = np.array([b for of in partners for b in of], dtype=np.int32)
    controller = NativeController(
        mined_controller(world.steps, len(agents), offsets, listed), world.steps
    )
    return expected, execute(world, [controller], Versioned(world.starts), Random(seed))


@settings(max_examples=250, deadline=None)
@given(SEEDS)
def test_every_rule_makes_the_history_of_lockstep(seed: int) -> None:
    check_law(seed)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_true_dependencies_suffice(seed: int) -> None:
    expected, history = by_dependency(seed)
    assert history == expected, f"seed {seed}"


@pytest.mark.parametrize("mode", [in_conservative, in_versioned])
def test_a_rule_one_tile_looser_is_caught(mode) -> None:
    worlds = [world for seed in range(150) if (world := random_world(seed)).perception_radius > 1]
    caught = [world.seed for world in worlds if mode(world, looser=1) != in_lockstep(world)]
    assert caught


def test_a_lookahead_one_step_longer_is_caught() -> None:
    def caught(seed: int) -> bool:
        try:
            return with_longer_lookahead(random_world(seed)) != in_lockstep(random_world(seed))
        except AssertionError:
            return True

    assert any(caught(seed) for seed in range(30))


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(10))
def test_campaign(part: int) -> None:
    for seed in range(1_000_000 + part * 1_100, 1_000_000 + (part + 1) * 1_100):
        check_law(seed)
        expected, history = by_dependency(seed)
        assert history == expected, f"seed {seed}"


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
def test_a_controller_continues_from_steps_and_positions(seed: int) -> None:
    """A controller rebuilt at any moment runs the same clusters, and commands the same later."""
    world, random = random_world(seed), Random(seed)
    rule = random.choice([conservative, versioned])(world.perception_radius, world.max_velocity)
    start = (rule, world.metric, world.max_velocity)
    whole = ReferenceController(*start, world.starts, world.steps)
    running = whole.start()
    at, steps = list(world.starts), [0] * len(world.starts)
    for _ in range(random.randrange(3 * len(at))):
        if not running:
            break
        done = running.pop(random.randrange(len(running)))
        for agent in done.agents:
            near = [p for p in world.starts if world.metric.within(at[agent], p, 0, 1e-9)]
            at[agent] = random.choice([at[agent], *near])
            steps[agent] += 1
        running += whole.handle([Commit(done.agents, tuple(at[a] for a in done.agents))])
    again = [
        made(*start, at, world.steps, steps=steps)
        for made in (ReferenceController, NativeController.of_rule)
    ]
    in_order = sorted(running, key=lambda dispatch: (dispatch.step, dispatch.agents))
    for controller in again:
        assert controller.start() == in_order
        assert controller.floor == whole.floor
        controller.validate()
    at_work = {agent for dispatch in running for agent in dispatch.agents}
    gone = {agent for agent in range(len(at)) if steps[agent] == world.steps}
    check_edges([whole, *again], at_work, gone)
    while running:
        cluster = running.pop(random.randrange(len(running)))
        commit = Commit(cluster.agents, tuple(at[agent] for agent in cluster.agents))
        commands = whole.handle([commit])
        running += commands
        for controller in again:
            assert controller.handle([commit]) == commands
            controller.validate()
    assert whole.finished
    assert all(controller.finished for controller in again)
