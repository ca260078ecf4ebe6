"""Generated movement: agents with homes, work and daily routines in a town.

Fitted to recordings of GenAgent (see docs/generator.md): activities begin on multiples of five
minutes; most lead to another object of the same building, some across the town.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np

from metropolis.maps.town import Place, Town, alderbrook
from metropolis.trace.generate.calibration import CALIBRATION
from metropolis.trace.generate.paths import Tile, Ways
from metropolis.trace.schema import Calls, Float32, Trace, TraceMeta
from metropolis.types import MetropolisError

T = TypeVar("T")

FIT = CALIBRATION.movement
MIDNIGHT = datetime(2023, 2, 13)


class _Stay(NamedTuple):
    """The agent stays at `place` until step `until`; without a place it sleeps."""

    until: int
    place: Place | None


@cache
def _ways() -> Ways:
    return Ways(alderbrook().map)


def generate_movement(
    agents: int = 25,
    hours: tuple[float, float] = (0.0, 24.0),
    seed: int = 0,
    radius: float | None = None,
) -> Trace:
    """Movement of up to 25 agents in Alderbrook over `hours` of simulated time, without calls.

    Hours count from the previous midnight; hours above 24 belong to later days. The routine of
    agent i depends only on (seed, i). Raises MetropolisError for more agents than beds, or an empty
    interval.
    """
    town = alderbrook()
    if not 1 <= agents <= len(town.beds):
        raise MetropolisError(
            f"{town.map.name} has beds for 1 to {len(town.beds)} agents, not {agents}; "
            "tile several towns for more"
        )
    first, last = (round(hour * 3600 / FIT.step_s) for hour in hours)
    if not 0 <= first < last:
        raise MetropolisError(f"hours {hours[0]:g}-{hours[1]:g}: the end must follow the start")
    work = _employment(town, seed)
    positions = np.stack(
        [_walk(town, agent, work[agent], last, seed) for agent in range(agents)], axis=1
    )
    meta = TraceMeta(
        name=f"{town.map.name}-{seed}",
        agents=town.residents[:agents],
        perception_radius=FIT.perception_radius if radius is None else float(radius),
        max_velocity=1.0,
        step_s=FIT.step_s,
        start=MIDNIGHT + timedelta(seconds=first * FIT.step_s),
        map=town.map,
        movement_origin="generated",
        calls_origin="generated",
        source=f"metropolis trace generate --seed {seed}",
    )
    return Trace(meta, positions[first:], Calls.empty())


def _employment(town: Town, seed: int) -> list[Place]:
    posts = [place for place in town.of_kind("work") for _ in range(place.staff)]
    order = np.random.default_rng([seed, len(town.beds)]).permutation(len(town.beds))
    return [posts[i % len(posts)] for i in order]


def _walk(town: Town, agent: int, work: Place, steps: int, seed: int) -> Float32:
    """(steps, 2): the agent's position at the beginning of each step."""
    rng = np.random.default_rng([seed, agent])
    home, bed = town.beds[agent]
    home = replace(home, spots=_own_spots(town, home, bed))
    tiles = [bed]
    for stay in _stays(town, home, work, steps, rng):
        while (now := len(tiles) - 1) < stay.until:
            goal, end = bed, stay.until
            if stay.place is not None:
                goal = _next_spot(town, stay.place, tiles[-1], rng)
                length = int(rng.choice(FIT.task_grids, p=FIT.task_share)) * FIT.grid_steps
                end = min(now + length, stay.until)
            tiles += _ways().path(tiles[-1], goal)
            arrival = -(-(len(tiles) - 1) // FIT.grid_steps) * FIT.grid_steps
            tiles += [goal] * (max(end, arrival) - len(tiles) + 1)
    return np.array(tiles[:steps], np.float32)


def _own_spots(town: Town, home: Place, bed: Tile) -> tuple[Tile, ...]:
    """The spots of a home, except those in other residents' bedrooms."""
    arenas = town.map.arenas
    others = {arenas[y, x] for x, y in home.beds} - {arenas[bed[1], bed[0]]}
    return tuple((x, y) for x, y in home.spots if arenas[y, x] not in others)


def _next_spot(town: Town, place: Place, at: Tile, rng: np.random.Generator) -> Tile:
    """The tile of the next activity: the same tile, another of the place, or one of an outing."""
    draw = rng.random()
    if draw < FIT.stay and at in place.spots:
        return at
    places = town.of_kind("errand") if draw > 1 - FIT.outing else (place,)
    spots = [_choose(_choose(places, rng).spots, rng) for _ in range(FIT.spots_considered)]
    return min(spots, key=lambda spot: abs(spot[0] - at[0]) + abs(spot[1] - at[1]))


def _stays(
    town: Town, home: Place, work: Place, steps: int, rng: np.random.Generator
) -> Iterator[_Stay]:
    """The stays of consecutive days from midnight until `steps` are covered, on the time grid."""
    grid_h = FIT.grid_steps * FIT.step_s / 3600

    def step(day: int, hour: float) -> int:
        return round((24 * day + hour) / grid_h) * FIT.grid_steps

    day = 0
    while step(day, 0) < steps:
        lunch = rng.uniform(*FIT.lunch_h)
        leave = rng.uniform(*FIT.leave_h)
        dinner = leave + rng.uniform(*FIT.errand_length_h)
        evening = dinner + rng.uniform(*FIT.dinner_length_h)
        meals = town.of_kind("meal")
        for hour, place in (
            (rng.uniform(*FIT.wake_h), None),
            (rng.uniform(*FIT.work_h), home),
            (lunch, work),
            (
                lunch + rng.uniform(*FIT.lunch_length_h),
                home if rng.random() < FIT.lunch_home else _choose(meals, rng),
            ),
            (leave, work),
            (dinner, _choose(town.of_kind("errand"), rng)),
            (evening, _choose(meals, rng) if rng.random() < FIT.dinner_out else home),
            (
                rng.uniform(*FIT.bed_h),
                _choose(meals, rng) if rng.random() < FIT.evening_out else home,
            ),
            (24.0, None),
        ):
            yield _Stay(step(day, hour), place)
        day += 1


def _choose(options: Sequence[T], rng: np.random.Generator) -> T:
    return options[int(rng.integers(len(options)))]
