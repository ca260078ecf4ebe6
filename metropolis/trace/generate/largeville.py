"""LargeVille (AI Metropolis §4.3): towns side by side, each living a day of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from metropolis.trace.generate.calls import generate_calls
from metropolis.trace.generate.movement import generate_movement
from metropolis.trace.schema import Calls, Int64, Trace
from metropolis.types import MetropolisError
from metropolis.world.map import GridMap
from metropolis.world.town import alderbrook

SHIFT_GRID_S = 300
"""Copies are shifted by multiples of 5 minutes, on which agents begin what they do."""


def generate(
    agents: int = 25,
    hours: tuple[float, float] = (0.0, 24.0),
    seed: int = 0,
    radius: float | None = None,
) -> Trace:
    """Generated movement with generated calls; beyond 25 agents, several towns side by side."""
    home = len(alderbrook().beds)
    if agents <= home:
        return _generated_town(agents, hours, [seed], radius)
    sizes = [min(home, agents - first) for first in range(0, agents, home)]
    return side_by_side(
        [_generated_town(size, hours, [seed, k], radius) for k, size in enumerate(sizes)]
    )


def tile(
    traces: Sequence[Trace],
    agents: int,
    seed: int = 0,
    shift_s: float = 900.0,
    hours: tuple[float, float] | None = None,
) -> Trace:
    """`agents` agents in towns side by side; town k replays trace k modulo their number.

    Each town lives `shift_s` earlier or later at most, with its edges held; the first len(traces)
    towns are not shifted. Generated calls are generated anew for each town, generated movement
    too, recorded ones are copied. `hours` (of day, counted from the midnight before) cuts all of
    them. Raises MetropolisError where the traces do not fit together.
    """
    _check_fit(traces)
    if agents < 1:
        raise MetropolisError(f"--agents {agents}: at least one agent is needed")
    towns: list[Trace] = []
    while (left := agents - sum(town.agents for town in towns)) > 0:
        k = len(towns)
        source = _first_agents(traces[k % len(traces)], left)
        towns.append(_town(source, k, k >= len(traces), seed, shift_s, hours))
    return side_by_side(towns)
