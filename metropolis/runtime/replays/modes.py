"""The execution modes of a replay, as data: a rule, a limit of calls in flight, or a bound.

`conservative` and `versioned` are the two rules of out-of-order execution.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from metropolis.rules.rules import RULES, MakeRule

OUT_OF_ORDER = {"out_of_order": "versioned"}
"""Mode of a run -> the mode of a replay with its usual rule."""


class Risk(NamedTuple):
    """The chance of being wrong at which an agent of the mode optimistic still runs ahead."""

    most: float
    """The chance while the instances are idle, from 0 to 1."""
    calls_half: float = inf
    """Calls in flight per instance, averaged over a minute, with which an agent of average lead
    over the slowest one is allowed half as much; infinity: the load does not matter.

    `most` is divided by 1 + (calls / calls_half * lead / mean lead) ** 4: a wrong call delays
    those in flight, and the run waits least for those far ahead.
    """


AUTO_RISK = Risk(0.4, 6)
"""The default; `metropolis bench optimistic` measures other values."""


@dataclass(frozen=True)
class Mode:
    """How agent-steps are ordered.

    `rule` makes the rule from the world's radii; a mode without a rule follows the dependencies
    mined from the trace (`oracle`) or recorded in it (`oracle_values`), or is a bound computed from
    the trace.
    """

    name: str
    rule: MakeRule | None = None
    outstanding_max: int = 0
    """Maximum number of calls in flight; 0: unlimited."""
    is_bound: bool = False
    is_optimistic: bool = False
    """Agents run ahead of the rule, which orders what they commit."""
    needs_values: bool = False
    """Whether the mode follows the trace's dependencies by value."""


MODES: dict[str, Mode] = {
    mode.name: mode
    for mode in (
        # one call at a time, as in GenAgent itself (the paper's single-thread)
        Mode("sequential", rule=RULES["lockstep"], outstanding_max=1),
        # all agents of a step at once, then a barrier (the paper's parallel-sync)
        Mode("lockstep", rule=RULES["lockstep"]),
        # out of order, AI Metropolis' own rule
        Mode("conservative", rule=RULES["conservative"]),
        # out of order, with step-versioned state
        Mode("versioned", rule=RULES["versioned"]),
        # agents run ahead on predictions, and repeat what was wrong
        Mode("optimistic", rule=RULES["versioned"], is_optimistic=True),
        # out of order, waiting only for dependencies that the trace proves
        Mode("oracle"),
        # out of order, waiting only for those who changed what an agent reads
        Mode("oracle_values", needs_values=True),
        # the longest dependency chain, on unlimited instances
        Mode("critical_path", is_bound=True),
        # all calls sent at time 0
        Mode("no_dependency", is_bound=True),
    )
}


def mode_of(name: str) -> Mode:
    """The mode of a replay with this name, which may be that of a run's mode."""
    return MODES[OUT_OF_ORDER.get(name, name)]
