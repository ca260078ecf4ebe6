"""Repair of recorded jumps: the agent walks what it was recorded to have leapt."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from metropolis.trace.schema import Float32, TraceMeta
from metropolis.trace.validate import displacement, jumps
from metropolis.types import MetropolisError
from metropolis.world.map import GridMap, Tile


def clamp(positions: Float32, meta: TraceMeta, path: object) -> tuple[Float32, int]:
    """Positions without jumps, and how many agent-steps differ from the recording.

    `meta.metric` is how moves are measured. From a jump on the agent follows its recorded track
    at `max_velocity`, leaving out loops, until it has caught up. Between tiles it walks
    4-neighbour steps, round walls if there is a map; a track that is not on whole tiles is
    pursued in a straight line.
    """
    repaired = positions.copy()
    for agent in np.flatnonzero(jumps(positions, meta).any(axis=0)):
        track = positions[:, agent]
        if (track == np.rint(track)).all() and meta.max_velocity >= 1:
            place = f"{path}, agent {meta.agents[agent]!r}"
            repaired[:, agent] = _walk(track, int(meta.max_velocity), meta.map, place)
        else:
            repaired[:, agent] = _pursue(track, meta)
    return repaired, int((repaired != positions).any(axis=2).sum())


def _walk(track: Float32, velocity: int, map: GridMap | None, place: str) -> npt.NDArray[np.int64]:
    tiles = [(int(x), int(y)) for x, y in track]
    ahead = tiles[:1]  # where the agent stands, and the tiles it still has to walk
    walked = [ahead[0]]
    for step, (before, after) in enumerate(pairwise(tiles), 1):
        between = _straight(before, after) if map is None else map.walk(before, after)
        if between is None:
            raise MetropolisError(
                f"{place}, step {step}: no way leads from {before} to {after} on the map, so the"
                " jump cannot be clamped; the map should be the one of the recording"
            )
        for tile in between:
            if tile in ahead:
                del ahead[ahead.index(tile) + 1 :]
            else:
                ahead.append(tile)
        del ahead[: min(velocity, len(ahead) - 1)]
        walked.append(ahead[0])
    return np.array(walked)


def _straight(start: Tile, goal: Tile) -> list[Tile]:
    """4-neighbour tiles from `start` to `goal`, first along x, then along y."""
    (x, y), (to_x, to_y) = start, goal
    along_x = [(i, y) for i in range(x, to_x, 1 if to_x > x else -1)]
    along_y = [(to_x, j) for j in range(y, to_y, 1 if to_y > y else -1)]
    return [*along_x, *along_y, goal][1:] if start != goal else []


def _pursue(track: Float32, meta: TraceMeta) -> Float32:
    pursued = track.copy()
    for step in range(1, len(track)):
        move = track[step] - pursued[step - 1]
        distance = displacement(meta.metric, move)
        if distance > meta.max_velocity:
            pursued[step] = pursued[step - 1] + move * (meta.max_velocity / distance)
    return pursued
