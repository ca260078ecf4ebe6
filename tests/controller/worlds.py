"""Random small worlds in which any violation of causality changes history, and ways to run them.

State lies on tiles. An agent reads every tile and every agent it perceives, hashes what it read
with (seed, agent, step), and lets the hash decide where it goes and what it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import product
from math import floor
from random import Random
from typing import Protocol

import numpy as np

from metropolis.controller.base import Controller
from metropolis.rules.metrics import (
    PLANE_METRICS,
    GenAgent,
    Geodesic,
    Hops,
    Metric,
)
from metropolis.types import Commit, Dispatch, Position
from tests.controller.edges import check_edges
from tests.controller.lookahead import Lookahead

Tile = tuple[int, int]
History = dict[tuple[int, int], tuple[int, Position]]
"""(step, agent) -> its intention, computed from all that it read, and its new position."""


def mix(*values: int) -> int:
    return hash(values) & 0xFFFFFFFFFFFF


@dataclass
class World:
    seed: int
    metric: Metric
    perception_radius: int
    max_velocity: int
    joint_radius: float
    """Distance within which agents of one step consider each other's intentions; negative: none."""
    starts: list[Position]
    steps: int
    candidates: Callable[[Tile, int], list[Tile]]
    """Tiles that may lie within a distance of a tile."""
    meets: bool = True
    """Whether agents see each other and contend for tiles, or only read each other's marks."""

    def __post_init__(self) -> None:
        self.perceived = lru_cache(maxsize=None)(self._perceived)
        self.reachable = lru_cache(maxsize=None)(self._reachable)

    def __str__(self) -> str:
        return (
            f"world of seed {self.seed}: {self.metric.name}, r={self.perception_radius}, "
            f"v={self.max_velocity}, joint={self.joint_radius}, {len(self.starts)} agents"
        )

    def _perceived(self, p: Position) -> list[Tile]:
        r = self.perception_radius
        return [t for t in self.candidates(p, r) if self.metric.perceives(p, t, r)]

    def _reachable(self, p: Position) -> list[Tile]:
        v = self.max_velocity
        return [t for t in self.candidates(p, v) if self.metric.within(t, p, 0, v)]


@cache
def _square(radius: int) -> list[Tile]:
    return list(product(range(-radius, radius + 1), repeat=2))


def _graph(random: Random) -> Hops:
    nodes = random.randint(2, 40)
    edges = [
        (i, random.randrange(max(0, i - 3), i)) for i in range(1, nodes) if random.random() < 0.95
    ]
    neighbours: list[set[int]] = [set() for _ in range(nodes)]
    for i, j in edges:
        neighbours[i].add(j)
        neighbours[j].add(i)
    return Hops([sorted(of) for of in neighbours])


def _walled(kind: str, random: Random, side: int, max_velocity: int) -> Geodesic | GenAgent:
    share = random.choice([0.0, 0.2, 0.35])
    walls = np.array([[random.random() < share for _ in range(side)] for _ in range(side + 2)])
    walls[0, 0] = False
    horizon = random.choice([max_velocity, 5, 96])
    if kind == "geodesic":
        return Geodesic(walls, horizon)
    across = random.choice([1, 3, 5])  # the side of a room; rooms share a few arenas
    rooms = [[random.randrange(3) for _ in range(side + 2)] for _ in range(side + 2)]
    arenas = np.array(
        [[rooms[y // across][x // across] for x in range(side)] for y in range(side + 2)]
    )
    return GenAgent(walls, arenas, max_velocity, horizon)


def random_world(seed: int, *, meets: bool = True) -> World:
    random = Random(seed)
    r, v = random.randint(0, 5), random.choice([1, 1, 1, 2, 3])
    joint = random.choice([-1, 0, r, max(r, 2 * v)]) if meets else -1
    agents, steps = random.randint(1, 8), random.randint(3, 10)
    side = random.randint(1, 6 + 3 * (r + v))
    kind = random.choice(["chebyshev", "euclidean", "manhattan", "geodesic", "genagent", "hops"])
    metric: Metric
    if kind == "hops":
        metric = _graph(random)
        nodes = len(metric.neighbours)
        places = [(i, 0) for i in range(nodes)]
        candidates = lambda p, _: places  # noqa: E731
    elif kind in ("geodesic", "genagent"):
        metric = _walled(kind, random, side, v)
        walls = metric.walls
        places = [(x, y) for x in range(side) for y in range(side + 2) if not walls[y, x]]

        def candidates(p: Tile, radius: int) -> list[Tile]:
            around = ((int(p[0]) + i, int(p[1]) + j) for i, j in _square(radius))
            return [t for t in around if metric.flaw(t) is None]
    else:
        metric = PLANE_METRICS[kind]
        low = random.choice([0, -side // 2, 10**6])
        places = [(low + x, low + y) for x, y in product(range(side), repeat=2)]

        def candidates(p: Tile, radius: int) -> list[Tile]:
            return [(int(p[0]) + i, int(p[1]) + j) for i, j in _square(floor(radius))]

    starts: list[Position] = [random.choice(places) for _ in range(agents)]
    return World(seed, metric, r, v, joint, starts, steps, candidates, meets)


class State(Protocol):
    """The state of a world at the beginning of a step: tiles and positions."""

    def read(self, tile: Tile, step: int) -> int: ...
    def position(self, agent: int, step: int) -> Position: ...
    def write(self, tile: Tile, step: int, value: int) -> None: ...
    def move(self, agent: int, step: int, position: Position) -> None: ...


class Plain:
    """Keeps only the newest values."""

    def __init__(self, starts: Sequence[Position]) -> None:
        self._tiles: dict[Tile, int] = {}
        self._positions = list(starts)

    def read(self, tile: Tile, step: int) -> int:
        return self._tiles.get(tile, 0)

    def position(self, agent: int, step: int) -> Position:
        return self._positions[agent]

    def write(self, tile: Tile, step: int, value: int) -> None:
        self._tiles[tile] = value

    def move(self, agent: int, step: int, position: Position) -> None:
        self._positions[agent] = position


class Versioned:
    """Keeps every value with the step that wrote it; of the writers of a step the smallest wins."""

    def __init__(self, starts: Sequence[Position]) -> None:
        self._tiles: dict[Tile, dict[int, int]] = {}
        self._positions = [[p] for p in starts]
        self.writers: dict[tuple[Tile, int], list[int]] = {}

    def newest(self, tile: Tile, step: int) -> int:
        """The newest step below `step` that wrote the tile; -1 when there is none."""
        return max((s for s in self._tiles.get(tile, ()) if s < step), default=-1)

    def read(self, tile: Tile, step: int) -> int:
        newest = self.newest(tile, step)
        return self._tiles[tile][newest] if newest >= 0 else 0

    def position(self, agent: int, step: int) -> Position:
        positions = self._positions[agent]
        return positions[min(step, len(positions) - 1)]

    def write(self, tile: Tile, step: int, value: int) -> None:
        versions = self._tiles.setdefault(tile, {})
        versions[step] = min(value, versions.get(step, value))

    def move(self, agent: int, step: int, position: Position) -> None:
        self._positions[agent].append(position)


@dataclass
class Outcome:
    step: int
    intents: dict[int, int]
    positions: dict[int, Position]
    writes: dict[Tile, int] = field(default_factory=dict)


def proceed(world: World, state: State, step: int, cluster: Sequence[int]) -> Outcome:
    """The joint decision of one cluster at `step`."""
    at = {a: state.position(a, step) for a in cluster}
    digests = {a: _digest(world, state, step, a, at[a]) for a in cluster}
    intents = {}
    for a in cluster:
        partners = [
            mix(b, digests[b])
            for b in cluster
            if b != a and world.metric.perceives(at[a], at[b], world.joint_radius)
        ]
        intents[a] = mix(digests[a], sum(partners))
    outcome = Outcome(step, intents, dict(at))
    targets: dict[Tile, int] = {}  # the contender with the smallest intent gets the tile
    for a in sorted(cluster, key=lambda a: intents[a], reverse=True):
        reachable = world.reachable(at[a])
        targets[reachable[intents[a] % len(reachable)]] = a  # the last wins
        aim = reachable[(intents[a] >> 16) % len(reachable)]
        for tile in (at[a], aim):
            value = mix(intents[a], 1)
            outcome.writes[tile] = min(value, outcome.writes.get(tile, value))
        if not world.meets:
            outcome.positions[a] = reachable[intents[a] % len(reachable)]
    if world.meets:
        outcome.positions.update((a, tile) for tile, a in targets.items())
    return outcome


def _digest(world: World, state: State, step: int, agent: int, at: Position) -> int:
    r = world.perception_radius
    seen = [state.read(tile, step) for tile in world.perceived(at)]
    if world.meets:
        for b in range(len(world.starts)):
            other = state.position(b, step)
            if world.metric.perceives(at, other, r):
                seen += [b, hash(other)]
    return mix(world.seed, agent, step, hash(at), *seen)


def execute(
    world: World, controllers: Sequence[Controller], state: State, random: Random
) -> History:
    """Runs the world in a random order of completion; all controllers must return equal commands.

    A cluster reads when it is dispatched or just before it commits, and writes when it commits.
    Some agents go on as far as the last controller's lookahead says, and commit afterwards.
    """
    history: History = {}
    running: list[tuple[Dispatch, Outcome | None]] = []
    # Writes of steps that are not committed yet.
    gone_on: dict[int, list[Outcome]] = {}
    lookahead = Lookahead(controllers[-1])

    def write(outcome: Outcome) -> None:
        for tile, value in outcome.writes.items():
            state.write(tile, outcome.step, value)
        for agent, position in outcome.positions.items():
            state.move(agent, outcome.step, position)
            history[outcome.step, agent] = (outcome.intents[agent], position)

    def go_on(dispatch: Dispatch) -> None:
        (agent,) = dispatch.agents
        until = max(dispatch.step + 1, controllers[-1].clear_until(agent))
        gone_on[agent] = []
        for step in range(dispatch.step, until):
            gone_on[agent].append(proceed(world, state, step, [agent]))
            write(gone_on[agent][-1])

    def begin(commits: list[Commit], commands: list[list[Dispatch]]) -> None:
        assert all(command == commands[0] for command in commands), (world, commands)
        lookahead.check(commits, commands[-1])
        for dispatch in commands[0]:
            alone = dispatch.agents[0] if len(dispatch.agents) == 1 else -1
            if alone >= 0 and not gone_on.get(alone) and random.random() < 0.3:
                go_on(dispatch)
            early = not gone_on.get(alone) and random.random() < 0.5
            outcome = proceed(world, state, dispatch.step, dispatch.agents) if early else None
            running.append((dispatch, outcome))
        for controller in controllers:
            controller.validate()
        at_work = {agent for dispatch, _ in running for agent in dispatch.agents}
        last = {a for commit in commits for a in commit.agents if committed[a] == world.steps}
        finished.update(last)
        check_edges(controllers, at_work, finished)

    committed = [0] * len(world.starts)
    finished: set[int] = set()
    begin([], [controller.start() for controller in controllers])
    while running:
        commits = []
        for _ in range(random.randint(1, len(running)) if random.random() < 0.2 else 1):
            dispatch, outcome = running.pop(random.randrange(len(running)))
            before = gone_on.get(dispatch.agents[0])
            if before:
                outcome = before.pop(0)
            else:
                outcome = outcome or proceed(world, state, dispatch.step, dispatch.agents)
                write(outcome)
            assert outcome.step == dispatch.step
            for agent in dispatch.agents:
                committed[agent] += 1
            positions = tuple(outcome.positions[a] for a in dispatch.agents)
            commits.append(Commit(dispatch.agents, positions))
        begin(commits, [controller.handle(commits) for controller in controllers])
        assert len({controller.floor for controller in controllers}) == 1
    assert all(controller.finished for controller in controllers)
    return history
