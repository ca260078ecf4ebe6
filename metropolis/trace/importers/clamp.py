"""Repair of recorded jumps: the agent walks the distance instead."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import numpy.typing as npt

from metropolis.maps.map import GridMap, Tile
from metropolis.names import cut
from metropolis.trace.schema import Float32, TraceMeta
from metropolis.trace.validate import displacement, jumps, tiles_on
from metropolis.types import MetropolisError


def clamp(positions: Float32, meta: TraceMeta, path: object) -> Float32:
    """Positions without jumps.

    `meta.metric` measures moves. After a jump the agent follows its recorded track at
    `max_velocity`, without loops, until it has caught up. Between tiles it walks 4-neighbour steps,
    around walls if there is a map; a track that is not on whole tiles is followed in a straight
    line.
    """
    repaired = positions.copy()
    for agent in np.flatnonzero(jumps(positions, meta).any(axis=0)):
        track = positions[:, agent]
        if (track == np.rint(track)).all() and meta.max_velocity >= 1:
            place = f"{path}, agent {cut(meta.agents[agent])}"
            repaired[:, agent] = _walk(track, int(meta.max_velocity), meta.map, place)
        else:
            repaired[:, agent] = _pursue(track, meta)
    return repaired


def off_walls(positions: Float32, map: GridMap) -> Float32:
    """Positions with the nearest free tile for those on a wall of the map."""
    tiles, inside = tiles_on(positions, map)
    x, y = tiles.transpose(2, 0, 1)
    on_wall = inside & map.walls[y, x]
    moved = positions.copy()
    for tile in {(int(x[at]), int(y[at])) for at in zip(*np.nonzero(on_wall), strict=True)}:
        moved[on_wall & (x == tile[0]) & (y == tile[1])] = map.free_tile(tile)
    return moved


def _walk(track: Float32, velocity: int, map: GridMap | None, place: str) -> npt.NDArray[np.int64]:
    tiles = [(int(x), int(y)) for x, y in track]
    at = tiles[0]
    ahead: list[Tile] = []  # recorded tiles the agent still has to reach
    leg: Iterator[Tile] = iter(())  # the path to the first of them
    walked = [at]
    for step, recorded in enumerate(tiles[1:], 1):
        if recorded in ahead:
            del ahead[ahead.index(recorded) + 1 :]
        else:
            ahead.append(recorded)
        for _ in range(velocity):
            while ahead and ahead[0] == at:
                del ahead[0]
                leg = iter(())
            if not ahead:
                break
            tile = next(leg, None)
            if tile is None:
                leg = _way(at, ahead[0], map, f"{place}, step {step}")
                tile = next(leg)
            at = tile
        walked.append(at)
    return np.array(walked)


def _way(start: Tile, goal: Tile, map: GridMap | None, place: str) -> Iterator[Tile]:
    """4-neighbour tiles from `start` (exclusive) to `goal`; without a map along x, then along y."""
    if map is None:
        (x, y), (to_x, to_y) = start, goal
        along_x = range(x, to_x, 1 if to_x > x else -1)[1:]
        along_y = range(y, to_y, 1 if to_y > y else -1)[1 if x == to_x else 0 :]
        return chain(((i, y) for i in along_x), ((to_x, j) for j in along_y), [goal])
    walk = map.walk(start, goal)
    if walk is None:
        raise MetropolisError(
            f"{place}: there is no path from {start} to {goal} on the map, so the jump cannot be"
            " clamped; the map should be the one of the recording"
        )
    return iter(walk)


def _pursue(track: Float32, meta: TraceMeta) -> Float32:
    pursued = track.copy()
    for step in range(1, len(track)):
        move = track[step] - pursued[step - 1]
        distance = displacement(meta.metric, move)
        if distance > meta.max_velocity:
            pursued[step] = pursued[step - 1] + move * (meta.max_velocity / distance)
    return pursued
