"""LargeVille (AI Metropolis §4.3): towns side by side, each with a different day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from metropolis.maps.tiling import side_by_side
from metropolis.maps.town import alderbrook
from metropolis.names import cut
from metropolis.trace.generate.calibration import CALIBRATION
from metropolis.trace.generate.calls import generate_calls
from metropolis.trace.generate.movement import generate_movement
from metropolis.trace.order import ranges
from metropolis.trace.schema import Calls, Int32, Int64, Trace, TraceMeta
from metropolis.types import MetropolisError

SHIFT_GRID_S = 300
"""Copies are shifted by multiples of 5 minutes, on which agents begin activities."""

Hours = tuple[float, float]
Advance = Callable[[int], None]
"""Called with the number of agents of each generated town."""


def generate(
    agents: int = 25,
    hours: Hours = (0.0, 24.0),
    seed: int = 0,
    radius: float | None = None,
    advance: Advance = lambda _: None,
) -> Trace:
    """Generate movement and calls, in several towns if the beds of one are not enough.

    Hours count from the previous midnight. Town k depends on (seed, k). Raises MetropolisError for
    no agents or an empty interval.
    """
    _check_stretch(hours, CALIBRATION.movement.step_s)
    home = len(alderbrook().beds)
    towns = []
    for k, first in enumerate(range(0, max(agents, 1), home)):
        size = min(home, agents - first)
        whole = generate_movement(size, (0.0, hours[1]), _seed(seed, k), radius)
        towns.append(_cut(generate_calls(whole, _seed(seed, k)), hours))
        advance(size)
    return _side_by_side(towns)


def tile(
    traces: Sequence[Trace],
    agents: int,
    seed: int = 0,
    shift_s: float = 900.0,
    hours: Hours | None = None,
    advance: Advance = lambda _: None,
) -> Trace:
    """`agents` agents in towns side by side; town k uses trace k modulo their number.

    When a trace is reused, its movement is shifted by up to `shift_s` seconds either way, with the
    first and last positions held; movement of the bundled town is regenerated instead. Generated
    calls are regenerated for every town, with the models of the trace; others are copied. `hours`
    (from the previous midnight) cuts every town. Raises MetropolisError if the traces are
    incompatible.
    """
    if agents < 1:
        raise MetropolisError(f"{agents} agents cannot be tiled; it should be at least 1")
    _check_fit(traces)
    for trace in traces:
        _check_hours(trace, hours)
    towns: list[Trace] = []
    while (left := agents - sum(town.agents for town in towns)) > 0:
        k = len(towns)
        source = traces[k % len(traces)].first_agents(left)
        town = source if k < len(traces) else _another(source, _seed(seed, k), shift_s)
        if town.meta.calls_origin == "generated":
            town = _with_models(generate_calls(town, _seed(seed, k)), source.calls)
        towns.append(_cut(town, hours))
        advance(town.agents)
    return _side_by_side(towns)


def _with_models(town: Trace, known: Calls) -> Trace:
    """`town` with the models that each agent's functions have in `known`.

    If the agent has not called the function there, the model is that of most calls of the function.
    If nobody has called it, the model is the default.
    """
    model_of: dict[tuple[int | None, str], str] = {}
    columns = known.function.tolist(), known.model.tolist()
    for agents in [None] * len(known), known.agent.tolist():
        counts = Counter(zip(agents, *columns, strict=True))
        for (agent, function, model), _ in reversed(counts.most_common()):
            model_of[agent, known.functions[function]] = known.models[model]
    calls = town.calls
    names = [
        model_of.get((agent, function), model_of.get((None, function), calls.models[0]))
        for agent, function in zip(
            calls.agent.tolist(), (calls.functions[i] for i in calls.function), strict=True
        )
    ]
    models, model = np.unique(np.array(names, np.str_), return_inverse=True)
    return replace(
        town, calls=replace(calls, models=tuple(models.tolist()), model=model.astype(np.int32))
    )


def _side_by_side(towns: Sequence[Trace]) -> Trace:
    """One trace of all `towns`, each a map's width east of the previous; a single one is unchanged.

    The agents of town k are named `name #k`, counted from 1.
    """
    if len(towns) == 1:
        return towns[0]
    meta = towns[0].meta
    span = meta.map.width if meta.map else _span(towns)
    return Trace(
        replace(
            meta,
            name=f"{meta.name} x {len(towns)}".lstrip(),
            agents=tuple(
                f"{name} #{k}" for k, town in enumerate(towns, 1) for name in town.meta.agents
            ),
            map=side_by_side(meta.map, len(towns)) if meta.map else None,
        ),
        np.concatenate(
            [town.positions + np.array([k * span, 0], np.float32) for k, town in enumerate(towns)],
            axis=1,
        ),
        _join(towns),
    )


def _seed(seed: int, town: int) -> int:
    """A different seed for every town; the first town's is `seed`."""
    if town == 0:
        return seed
    return int(np.random.SeedSequence([seed, town]).generate_state(1, np.uint64)[0])


def _cut(town: Trace, hours: Hours | None) -> Trace:
    _check_hours(town, hours)
    return town if hours is None else town.between_hours(*hours)


def _check_hours(town: Trace, hours: Hours | None) -> None:
    """Raise MetropolisError if the town does not contain `hours`."""
    if hours is None:
        return
    _check_stretch(hours, town.meta.step_s)
    try:
        town.steps_between(*hours)
    except MetropolisError as error:
        raise MetropolisError(f"{_called(town.meta)} lacks hours: {error}") from None


def _check_stretch(hours: Hours, step_s: float) -> None:
    if 0 <= (hours[1] - hours[0]) * 3600 < step_s - 1e-6:
        raise MetropolisError(
            f"hours {hours[0]:g}-{hours[1]:g}: are shorter than a step of {step_s:g} s;"
            " it should be at least one"
        )


def _another(source: Trace, seed: int, shift_s: float) -> Trace:
    """Another day of the same town."""
    meta = source.meta
    own_town = alderbrook().map.name
    if meta.movement_origin == "generated" and meta.map and meta.map.name == own_town:
        hours = source.hour_of_step(0), source.hour_of_step(source.steps)
        return generate_movement(source.agents, hours, seed, meta.perception_radius)
    most = int(shift_s // SHIFT_GRID_S)
    later_s = int(np.random.default_rng(seed).integers(-most, most + 1)) * SHIFT_GRID_S
    return _shifted(source, round(later_s / meta.step_s))


def _shifted(source: Trace, later: int) -> Trace:
    """Shift a trace by `later` steps; its length stays the same."""
    steps = np.arange(source.steps) - later
    calls = source.calls
    calls = calls.keep((calls.step + later >= 0) & (calls.step + later < source.steps))
    return replace(
        source,
        positions=source.positions[steps.clip(0, source.steps - 1)],
        calls=replace(calls, step=(calls.step + later).astype(np.int32)),
    )


_SHARED = ("perception_radius", "max_velocity", "joint_radius", "metric", "step_s", "start")


def _check_fit(traces: Sequence[Trace]) -> None:
    """Raise MetropolisError unless all traces share the metadata of the tiled trace."""
    if not traces:
        raise MetropolisError("no trace to tile; give at least one")
    first = traces[0].meta
    called = _called(first)
    if first.graph is not None:
        raise MetropolisError(
            f"{called}: is a trace of a graph; only traces in the plane can be put side by side"
        )
    for trace in traces[1:]:
        other = _called(trace.meta)
        for name in _SHARED:
            value, right = getattr(trace.meta, name), getattr(first, name)
            if value != right:
                raise MetropolisError(
                    f"{other}: {name} is {value}; it should be {right} as in {called}"
                )
        if trace.steps != traces[0].steps:
            raise MetropolisError(
                f"{other}: has {trace.steps} steps; beside {called} it should have"
                f" {traces[0].steps}"
            )
        if (trace.meta.map and trace.meta.map.walls.shape) != (first.map and first.map.walls.shape):
            raise MetropolisError(
                f"{other}: its map has another size than that of {called}; it should be the same"
            )


def _called(meta: TraceMeta) -> str:
    return f"the trace {cut(meta.name)}" if meta.name else "the trace without a name"


def _span(towns: Sequence[Trace]) -> int:
    """The width of a town without a map: its movement, plus a gap that perception cannot cross."""
    meta = towns[0].meta
    widest = max(float(np.ptp(town.positions[..., 0])) for town in towns)
    return int(widest + meta.perception_radius + 2 * meta.max_velocity) + 1


def _join(towns: Sequence[Trace]) -> Calls:
    """Merge all calls, with agents, functions, models, prefixes and parents renumbered."""
    parts = [town.calls for town in towns]
    sizes = [len(part) for part in parts]
    first_agent = np.repeat(np.cumsum([0, *(town.agents for town in towns[:-1])]), sizes)
    step = np.concatenate([part.step for part in parts])
    agent = np.concatenate([part.agent for part in parts]) + first_agent
    order = np.lexsort((agent, step))
    place = np.argsort(order)
    functions, function = _renumbered([(part.functions, part.function) for part in parts])
    models, model = _renumbered([(part.models, part.model) for part in parts])
    parent_counts = np.concatenate([np.diff(part.parent_offsets) for part in parts])
    first_call = np.cumsum([0, *sizes[:-1]])
    parents = np.concatenate([part.parents + i for part, i in zip(parts, first_call, strict=True)])
    first_parent = np.cumsum(parent_counts) - parent_counts
    # The parents of the calls in their new order, as new indices.
    moved = place[parents[ranges(first_parent[order], parent_counts[order])]]

    def columns(name: str) -> Int32:
        return np.concatenate([getattr(part, name) for part in parts])[order]

    def texts(name: str) -> list[str | None] | None:
        if all(getattr(part, name) is None for part in parts):
            return None
        found = [getattr(p, name) or [None] * len(p) for p in parts]
        flat = list(chain.from_iterable(found))
        return [flat[i] for i in order.tolist()]

    return Calls(
        step=step[order],
        agent=agent[order].astype(np.int32),
        function=function[order],
        functions=functions,
        model=model[order],
        models=models,
        prompt_tokens=columns("prompt_tokens"),
        output_tokens=columns("output_tokens"),
        prefix_id=_prefixes(towns)[order],
        prefix_tokens=columns("prefix_tokens"),
        parent_offsets=np.concatenate([[0], np.cumsum(parent_counts[order])]).astype(np.int64),
        parents=moved.astype(np.int64),
        prompt=texts("prompt"),
        completion=texts("completion"),
    )


def _renumbered(parts: Sequence[tuple[tuple[str, ...], Int32]]) -> tuple[tuple[str, ...], Int32]:
    """Merge several lists of names and the indices into them."""
    names = tuple(dict.fromkeys(chain.from_iterable(own for own, _ in parts)))
    index = [np.array([names.index(name) for name in own], np.int32)[of] for own, of in parts]
    return names, np.concatenate(index)


def _prefixes(towns: Sequence[Trace]) -> Int64:
    """Prefix ids distinct between towns, except those that generated calls of a function share."""
    columns, next_free = [], 0
    for town in towns:
        calls = town.calls
        own = calls.prefix_id >= 0
        if town.meta.calls_origin == "generated":
            own &= calls.prefix_id >= len(calls.functions)
        columns.append(np.where(own, calls.prefix_id + next_free, calls.prefix_id))
        next_free = max(next_free, int(columns[-1].max(initial=-1)) + 1)
    return np.concatenate(columns)
