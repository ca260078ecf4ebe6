"""The constraints on every trace, checked on every read, write and import.

1. Positions are finite, within ±1e9, on a walkable tile if there is a map, and (node, 0) in a
   graph.
2. No agent moves further than `max_velocity` in one step, measured in the trace's metric, in which
   the rules of dependency are stated: for `geodesic` and `genagent` the length of the walk, for
   `hops` along the graph.
3. A call has at least one prompt token and one output token; its prefix is part of its prompt.
4. The parents of a call are earlier calls of the same agent-step, or calls of other agents in the
   same step; no calls wait for each other in a cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from metropolis.maps.map import GridMap
from metropolis.names import counted, cut, format_position
from metropolis.rules.metrics import COORDINATE_MAX, METRICS, GenAgent, Geodesic, Hops
from metropolis.rules.metrics import distance as metric_distance
from metropolis.trace.order import parents_first
from metropolis.trace.schema import Calls, Float32, Int64, Trace, TraceMeta
from metropolis.types import MetropolisError

Place = Callable[[int, int], str]
"""(step, agent) -> its place in the file, as the beginning of a sentence."""

SIMILAR = 0.8
"""Similarity of names, by difflib, from which one is taken for a slip of the other."""
WALKING = (Geodesic.name, GenAgent.name)
"""Metrics in which agents walk around the map's walls."""
ORIGINS = ("recorded", "derived", "generated")
LIMIT = 1e6
"""Upper bound of radius, velocity and seconds per step."""
SLACK = 1e-4
"""Positions are float32: a move may exceed the velocity by this absolute amount."""
ROUNDING = 2.0**-22
"""The tolerance relative to the coordinates, far from the origin: half a unit for each of two at
both ends."""


def place_in(path: object, agents: tuple[str, ...]) -> Place:
    """Places in a file without rows: by step and agent."""
    return lambda step, agent: f"{path}, step {step}, agent {cut(agents[agent])}"


def check_slips(given: Iterable[str], known: Sequence[str], place: str) -> None:
    """Raise MetropolisError if a name is unknown and resembles a known one."""
    for name in given:
        if name not in known and (close := get_close_matches(name, known, 1, SIMILAR)):
            raise MetropolisError(
                f"{place}: has the unknown field {cut(name)}; if it is not {close[0]}, rename it "
                "or leave it out"
            )


def displacement(metric: str, moves: Float32) -> npt.NDArray[np.float64]:
    """Lengths of `moves` (..., 2) in `metric`, ignoring walls (walks: Manhattan)."""
    size = np.abs(moves.astype(np.float64))
    if metric == "chebyshev":
        return np.asarray(size.max(axis=-1))
    if metric == "euclidean":
        return np.hypot(size[..., 0], size[..., 1])
    return np.asarray(size.sum(axis=-1))


def validate(trace: Trace, path: object, place: Place | None = None) -> None:
    """Raise `MetropolisError` on the first violation; `path` is the file of the trace."""
    validate_meta(trace.meta, path)
    place = place or place_in(path, trace.meta.agents)
    shape = trace.positions.shape
    if len(shape) != 3 or shape[1:] != (len(trace.meta.agents), 2) or not shape[0]:
        raise MetropolisError(
            f"{path}: positions have the shape {shape}; it should be (steps, agents, 2)"
            f" with {len(trace.meta.agents)} agents and at least one step"
        )
    validate_positions(trace.positions, trace.meta.map, place)
    far = (np.abs(trace.positions) > COORDINATE_MAX).any(axis=2)
    if (bad := _first(far)) is not None:
        raise MetropolisError(
            f"{place(*bad)}: x, y = {format_position(trace.positions[bad])} is too far away;"
            f" coordinates should lie within ±{COORDINATE_MAX:g}"
        )
    _validate_nodes(trace.positions, trace.meta, place)
    validate_moves(trace.positions, trace.meta, place)
    _validate_calls(trace.calls, trace, path, place)
    _validate_shown(trace, path)


def _validate_shown(trace: Trace, path: object) -> None:
    keys = [(change.step, change.agent) for change in trace.shown or ()]
    ordered = all(before < after for before, after in pairwise(keys))
    if not ordered or any(
        not (0 <= step < trace.steps and 0 <= agent < trace.agents) for step, agent in keys
    ):
        raise MetropolisError(
            f"{path}: what agents show is not in order; it should be one change for a step and an "
            "agent of the trace, ordered by step, then agent"
        )


def metadata_fault(path: object, field: str, value: object, right: str) -> MetropolisError:
    """The error for a field of the metadata of the file `path`."""
    return MetropolisError(f"{path}, metadata: {field} is {cut(value)}; it should be {right}")


def validate_meta(meta: TraceMeta, path: object) -> None:
    """Check the metadata of the trace."""
    refuse = partial(metadata_fault, path)

    if not meta.agents or not all(isinstance(a, str) and a for a in meta.agents):
        raise refuse("agents", meta.agents, "a list of at least one name")
    if len(set(meta.agents)) < len(meta.agents):
        twice = next(a for a in meta.agents if meta.agents.count(a) > 1)
        raise refuse("agents", twice, "a list of names without repetition")
    radii = meta.perception_radius, meta.max_velocity, meta.joint_radius
    validate_reach(f"{path}, metadata: ", *radii)
    if not 0 < meta.step_s <= LIMIT:
        raise refuse("step_s", meta.step_s, f"a number above 0 and at most {LIMIT:g}")
    if meta.metric not in METRICS:
        raise refuse("metric", meta.metric, f"one of {', '.join(METRICS)}")
    if meta.metric in WALKING and meta.map is None:
        raise refuse("map", None, f"a grid map, because the metric is {meta.metric}")
    if meta.metric == Hops.name and meta.graph is None:
        raise refuse("graph", None, "nodes and edges, because the metric is hops")
    if meta.metric != Hops.name and meta.graph is not None:
        raise refuse("metric", meta.metric, "hops, because there is a graph")
    if meta.start.tzinfo is not None:
        raise refuse("start", f"{meta.start}", "the local time, without time zone")
    for name in ("movement_origin", "calls_origin"):
        if getattr(meta, name) not in ORIGINS:
            raise refuse(name, getattr(meta, name), f"one of {', '.join(ORIGINS)}")


def validate_reach(
    owner: str, perception_radius: float, max_velocity: float, joint_radius: float | None
) -> None:
    """Check the radii and the velocity; `owner` begins the error."""
    for name, value in ("perception_radius", perception_radius), ("max_velocity", max_velocity):
        if not 0 <= value <= LIMIT:
            raise MetropolisError(
                f"{owner}{name} is {cut(value)}; it should be a number at least 0 and at most "
                f"{LIMIT:g}"
            )
    most = max(perception_radius, 2 * max_velocity)
    if joint_radius is not None and not 0 <= joint_radius <= most:
        raise MetropolisError(
            f"{owner}joint_radius is {cut(joint_radius)}; it should be 0 to {most:g}, the "
            "perception radius or twice the velocity"
        )


def tiles_on(
    positions: Float32, map: GridMap
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """The tiles of `positions`, and whether each is on the map; (0, 0) for one that is not."""
    tiles = np.floor(positions.astype(np.float64) + 0.5)
    inside = np.all((tiles >= 0) & (tiles < (map.width, map.height)), axis=2)
    tiles[~inside] = 0
    return tiles.astype(np.intp), inside


def validate_positions(
    positions: Float32, map: GridMap | None, place: Place, advice: str = ""
) -> None:
    """Check that all positions are finite, and on a walkable tile of `map`."""
    if (bad := _first(~np.isfinite(positions).all(axis=2))) is not None:
        field = "y" if np.isfinite(positions[bad][0]) else "x"
        value = positions[bad]["xy".index(field)]
        raise MetropolisError(f"{place(*bad)}: {field} is {value}; it should be a finite number")
    if map is None:
        return
    tiles, inside = tiles_on(positions, map)
    if (bad := _first(~inside)) is not None:
        raise MetropolisError(
            f"{place(*bad)}: x, y = {format_position(positions[bad])} lies outside the map;"
            f" x should be 0 to {map.width - 1} and y 0 to {map.height - 1}"
        )
    if (bad := _first(map.walls[tiles[..., 1], tiles[..., 0]])) is not None:
        raise MetropolisError(
            f"{place(*bad)}: x, y = {format_position(positions[bad])} is a wall of the map;"
            f" an agent should stand on a walkable tile{advice}"
        )


def _validate_nodes(positions: Float32, meta: TraceMeta, place: Place) -> None:
    """Check that all positions are nodes of the graph, if there is one."""
    if meta.graph is None:
        return
    x, y = np.moveaxis(positions, 2, 0)
    node = (x >= 0) & (x < len(meta.graph)) & (x == np.floor(x)) & (y == 0)
    if (bad := _first(~node)) is not None:
        raise MetropolisError(
            f"{place(*bad)}: x, y = {format_position(positions[bad])} is not a node; it should be a"
            f" whole number, 0 to {len(meta.graph) - 1}, and 0"
        )


def rounded_velocity(positions: Float32, velocity: float) -> float:
    """`velocity`, or the larger one of moves that are rounded: by the slack of `jumps`.

    Whole numbers are not rounded.
    """
    pieces = (positions[first : first + 256] for first in range(0, len(positions), 256))
    if all((piece == np.rint(piece)).all() for piece in pieces):
        return velocity
    return velocity + SLACK + float(np.abs(positions).max(initial=0)) * ROUNDING


def jumps(positions: Float32, meta: TraceMeta) -> npt.NDArray[np.bool_]:
    """(steps - 1, agents): whether the move from step s to s + 1 exceeds the velocity."""
    moves = np.diff(positions, axis=0)
    if meta.graph is not None:
        return _leaps(positions, meta.graph, meta.max_velocity)
    length = displacement(meta.metric, moves)
    size = np.abs(positions).max(axis=2, initial=0) * ROUNDING
    longest = meta.max_velocity + SLACK + np.maximum(size[1:], size[:-1])
    too_far: npt.NDArray[np.bool_] = length > longest
    if meta.metric in WALKING and meta.map is not None:
        # Without walls the walking distance is Manhattan's; only longer moves can cross a wall.
        longer = (length > 1) & ~too_far
        ends = np.concatenate([positions[:-1][longer], positions[1:][longer]], axis=1)
        kinds, kind = np.unique(ends, axis=0, return_inverse=True)
        walked = meta.max_velocity + SLACK
        no_way = [meta.map.walk(ends[:2], ends[2:], walked) is None for ends in kinds]
        too_far[longer] = np.array(no_way, bool)[kind.ravel()]
    return too_far


def _leaps(
    positions: Float32, graph: Sequence[Sequence[int]], velocity: float
) -> npt.NDArray[np.bool_]:
    """Return what `jumps` does, for moves along the edges of a graph."""
    metric = Hops(graph)
    before, after = positions[:-1, :, 0], positions[1:, :, 0]
    too_far: npt.NDArray[np.bool_] = before != after
    for step, agent in np.argwhere(too_far):
        p, q = (float(before[step, agent]), 0.0), (float(after[step, agent]), 0.0)
        too_far[step, agent] = not metric.within(p, q, 0, velocity)
    return too_far


def validate_moves(positions: Float32, meta: TraceMeta, place: Place, advice: str = "") -> None:
    """Check that no agent moves further than `max_velocity` in a step."""
    too_far = jumps(positions, meta)
    if (bad := _first(too_far)) is None:
        return
    step, agent = bad
    before, after = positions[step, agent], positions[step + 1, agent]
    more = int(too_far.sum()) - 1
    others = f" (and {counted(more, 'more jump')})" if more else ""
    distance = float(displacement(meta.metric, after - before))
    if meta.metric in WALKING and meta.map is not None:
        walk = meta.map.walk(before, after)
        distance = np.inf if walk is None else len(walk)
    if meta.graph is not None:
        p, q = ((float(x), 0.0) for x, _ in (before, after))
        distance = metric_distance(Hops(meta.graph), p, q)
    raise MetropolisError(
        f"{place(step + 1, agent)}: x, y jumps from {format_position(before)} to"
        f" {format_position(after)}, a {meta.metric} distance of {distance:g}{others};"
        f" a move should be at most max_velocity = {meta.max_velocity:g}{advice}"
    )


def _validate_calls(calls: Calls, trace: Trace, path: object, place: Place) -> None:
    if not len(calls):
        return
    for where, column, count in (
        ("at step", calls.step, trace.steps),
        ("of agent", calls.agent, trace.agents),
    ):
        if (bad := (column < 0) | (column >= count)).any():
            i = int(np.argmax(bad))
            raise MetropolisError(
                f"{path}: call {i} is {where} {column[i]}; it should be 0 to {count - 1}"
            )
    key = calls.step.astype(np.int64) * trace.agents + calls.agent
    if (bad := np.diff(key) < 0).any():
        i = int(np.argmax(bad)) + 1
        raise MetropolisError(
            f"{place(int(calls.step[i]), int(calls.agent[i]))}: this agent-step's call comes after"
            " those of a later one; calls should be sorted by step, then agent"
        )
    first = np.searchsorted(key, key)

    def refuse(i: int, field: str, value: object, right: str) -> MetropolisError:
        where = place(int(calls.step[i]), int(calls.agent[i]))
        return MetropolisError(
            f"{where}, call {i - first[i]}: {field} is {value}; it should be {right}"
        )

    for field in ("prompt_tokens", "output_tokens"):
        tokens = getattr(calls, field)
        if (bad := tokens < 1).any():
            i = int(np.argmax(bad))
            raise refuse(i, field, tokens[i], "at least 1")
    if (bad := (calls.prefix_tokens < 0) | (calls.prefix_tokens > calls.prompt_tokens)).any():
        i = int(np.argmax(bad))
        right = f"0 to {calls.prompt_tokens[i]}, its prompt"
        raise refuse(i, "prefix_tokens", calls.prefix_tokens[i], right)
    if (bad := calls.prefix_id < -1).any():
        i = int(np.argmax(bad))
        raise refuse(i, "prefix_id", calls.prefix_id[i], "at least 0, or null: unknown")
    for field, names in (("function", calls.functions), ("model", calls.models)):
        index = getattr(calls, field)
        if (bad := (index < 0) | (index >= len(names))).any():
            i = int(np.argmax(bad))
            raise refuse(i, field, index[i], f"0 to {len(names) - 1}, an index into {field}s")
    _validate_parents(calls, key, refuse)


def _validate_parents(
    calls: Calls, key: Int64, refuse: Callable[[int, str, object, str], MetropolisError]
) -> None:
    """`key` is (n,): step * agents + agent."""
    n = len(calls)
    first, behind = np.searchsorted(key, key), np.searchsorted(key, key, side="right")
    child = np.repeat(np.arange(n), np.diff(calls.parent_offsets))
    exists = (calls.parents >= 0) & (calls.parents < n)
    of = np.where(exists, calls.parents, 0)
    is_own = exists & (key[of] == key[child])
    is_other = exists & ~is_own & (calls.step[of] == calls.step[child])
    if (bad := ~is_other & ~(is_own & (of < child))).any():
        j = int(np.argmax(bad))
        i, parent = int(child[j]), int(calls.parents[j])
        seq, own, last = parent - first[i], i - first[i], behind[i] - first[i] - 1
        if not is_own[j]:
            problem = f"{seq}, which does not exist: the calls here are 0 to {last}"
        elif parent == i:
            problem = f"{seq}, the call itself, so it would wait forever"
        else:
            problem = f"{seq}, a later call, so they could wait for each other in a cycle"
        right = f"calls before call {own}" if own else "empty for the first call"
        raise refuse(i, "parents", problem, right)
    order = parents_first(calls)
    if len(order) == n:
        return
    is_stuck = np.ones(n, np.bool_)
    is_stuck[order] = False
    i = int(np.argmax(is_stuck))
    followed: dict[int, None] = {}
    while i not in followed:  # follow stuck parents until one repeats
        followed[i] = None
        waited = calls.parents[calls.parent_offsets[i] : calls.parent_offsets[i + 1]]
        i = int(waited[is_stuck[waited]][0])
    way = list(followed)
    cycle = way[way.index(i) :]
    names = [f"call {c - first[c]} of agent {calls.agent[c]}" for c in cycle]
    raise refuse(
        min(cycle, key=lambda c: (key[c], c)),
        "other_parents",
        f"part of a cycle ({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})",
        "calls that do not wait for this one",
    )


def _first(bad: npt.NDArray[np.bool_] | np.bool_) -> tuple[int, int] | None:
    """The (row, column) of the first True, or None."""
    found = np.argwhere(bad)
    return (int(found[0][0]), int(found[0][1])) if len(found) else None
