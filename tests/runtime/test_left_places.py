"""Who left places in sight, and what an agent does not know of it, against a search of all."""

from __future__ import annotations

from math import floor, inf
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis._core import LeftPlaces
from metropolis.rules.metrics import PLANE_METRICS, GenAgent, Geodesic, Hops, Metric
from metropolis.rules.native import core_metric
from metropolis.types import Position

SIDE = 12
AGENTS = 4
Needs = dict[int, int]


def metric_of(random: Random) -> Metric:
    if random.random() < 0.3:
        edges = {i: {i - 1} for i in range(1, SIDE) if random.random() < 0.9}
        return Hops(
            [[*edges.get(i, ()), *(j for j in edges if i in edges[j])] for i in range(SIDE)]
        )
    walls = np.zeros((SIDE, SIDE), bool)
    walls[5, 1:] = True
    arenas = np.array([[int(x > 4) for x in range(SIDE)] for _ in range(SIDE)])
    return random.choice([*PLANE_METRICS.values(), Geodesic(walls), GenAgent(walls, arenas, 1)])


class Definition:
    """All times that entities left places."""

    def __init__(self, metric: Metric, size: float) -> None:
        self._metric, self._size = metric, size
        self._left: dict[tuple[int, Position], tuple[int, Needs]] = {}

    def leave(self, entity: int, place: Position, step: int, change: Needs) -> None:
        self._left[entity, place] = step, change

    def in_sight(self, centre: Position, radius: float, since: int) -> list[tuple[int, Position]]:
        return [
            (entity, place)
            for (entity, place), (step, _) in self._left.items()
            if step > since and self._metric.perceives(centre, place, radius)
        ]

    def unknown_to(
        self, known: Needs, centre: Position, radius: float, since: int
    ) -> dict[int, Needs]:
        """If the last time of a cell is known, all times of that cell are known."""
        found: dict[int, Needs] = {}
        for entity, place in self.in_sight(centre, radius, since):
            cell = self._cell_of(place)
            _, latest = max(
                (
                    left
                    for (other, there), left in self._left.items()
                    if other == entity and self._cell_of(there) == cell
                ),
                key=lambda left: left[0],
            )
            if news(latest, known) and (new := news(self._left[entity, place][1], known)):
                needs = found.setdefault(entity, {})
                for agent, step in new.items():
                    needs[agent] = max(step, needs.get(agent, -1))
        return found

    def _cell_of(self, place: Position) -> tuple[int, int]:
        if isinstance(self._metric, Hops):
            return int(place[0]), 0
        return floor(place[0] / self._size), floor(place[1] / self._size)


def news(needs: Needs, known: Needs) -> Needs:
    return {agent: step for agent, step in needs.items() if step > known.get(agent, -1)}


@given(st.integers(0, 2**40))
@settings(deadline=None)
def test_what_is_unknown_is_that_of_the_definition(seed: int) -> None:
    random = Random(seed)
    metric, size = metric_of(random), random.choice([1, 2, 4])
    is_plane = metric in PLANE_METRICS.values()

    def place() -> Position:
        while True:
            scale = random.choice([1, 1, -0.3]) if is_plane else 1
            at = random.randrange(SIDE) * scale, random.randrange(SIDE) * scale
            if metric.flaw(at) is None:
                return at

    places, definition = LeftPlaces(core_metric(metric), size), Definition(metric, size)
    known: list[Needs] = [{} for _ in range(AGENTS)]
    spots = [place() for _ in range(8)]
    for step in range(random.randrange(25)):
        for agent in range(AGENTS):
            centre = random.choice(spots)
            radius = random.choice([0, size / 2, size, inf])
            is_new, since = random.random() < 0.7, random.choice([step - 2, step - 3])
            found: dict[int, Needs] = {}
            for entity, change in places.unknown_to(
                agent, known[agent], centre, radius, None if is_new else since
            ):
                needs = found.setdefault(entity, {})
                for other, needed in news(dict(change), known[agent]).items():
                    needs[other] = max(needed, needs.get(other, -1))
            expected = definition.unknown_to(known[agent], centre, radius, -1 if is_new else since)
            assert found == expected, (step, agent)
            has_left = places.has_left(centre, radius, since)
            assert has_left == bool(definition.in_sight(centre, radius, since))
            for needs in found.values() if random.random() < 0.8 else ():
                known[agent] |= news(needs, known[agent])
        for entity in random.sample(range(AGENTS + 1), 3):  # one of them is a thing
            others = random.choices(range(AGENTS), k=random.choice([0, 0, 0, 1, 2]))
            writer = entity if entity < AGENTS else random.randrange(AGENTS)
            change = {other: random.randint(0, step) for other in others} | {writer: step}
            left = random.choice(spots)
            places.leave(entity, left, step, [*change.items()])
            definition.leave(entity, left, step, change)
