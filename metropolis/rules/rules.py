"""The rules of causality: a rule is two radii over one predicate.

Agent a is about to run step s_a at p_a, and k = s_a - s_b. Executing a step reads the world as it
stands after every write of the steps before it. With `Metric.within`:

* a and b are *coupled* iff k = 0 and ``within(p_a, p_b, couple_radius, 0)``;
* a is *blocked* by b iff k > 0 and ``within(p_a, p_b, block_radius, k * max_velocity)``.

A cluster may run when nobody in it is blocked. Nobody is ever blocked by the agents ahead, so
whoever stands at the floor can always run. ``couple_radius <= block_radius`` is needed: an agent
that is not blocked by b can then not find b coupled with it when b arrives at its step, so a
cluster that may run can never grow. With r = perception_radius and v = max_velocity:

**conservative** (AI Metropolis §3.2): both radii are ``max(r, v) + v``. *Read after write*: the
pending writes of b land k*v away and a reads r, so the distance must exceed r + k*v. *Write after
read*: b may stand k*v from here when it runs step s_a, and must not yet see what a writes at the
end of that step within v of itself, so the distance must exceed r + (k+1)*v, which is more. The
published rule assumes r >= v; otherwise two writers can meet out of anybody's sight, hence
``max(r, v)``. Kept for all pairs of different steps: distance > max(r, v) + (|k|-1)*v.

**versioned**: every value is kept with the step that wrote it, and a reader at step s sees the
newest version below s. That leaves read after write (r + k*v) and two writers of one step, who
must decide together (2v): the block radius is ``max(r, 2v)``, and agents of one step are coupled
within ``max(2v, joint_radius)``, where `joint_radius` is how far the world lets two agents act
together within a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from metropolis.names import check_name
from metropolis.types import MetropolisError


@dataclass(frozen=True, slots=True)
class Rule:
    """Two radii in the world's unit of distance; infinite: everybody, negative: nobody."""

    couple_radius: float
    block_radius: float

    def __post_init__(self) -> None:
        if not self.couple_radius <= self.block_radius:
            raise MetropolisError(
                f"the couple radius {self.couple_radius:g} exceeds the block radius "
                f"{self.block_radius:g}; a cluster that may run could still grow"
            )


def conservative(
    perception_radius: float,
    max_velocity: float,
    joint_radius: float | None = None,  # noqa: ARG001
) -> Rule:
    """The rule of AI Metropolis §3.2, for worlds that keep only the newest value of everything.

    It couples whoever could act together: its radius is never below versioned's.
    """
    radius = max(perception_radius, max_velocity) + max_velocity
    return Rule(radius, radius)


def versioned(
    perception_radius: float, max_velocity: float, joint_radius: float | None = None
) -> Rule:
    """The rule for worlds that keep every value with the step that wrote it.

    `joint_radius` defaults to `perception_radius`; at most ``max(r, 2v)``.
    """
    block = max(perception_radius, 2 * max_velocity)
    joint = perception_radius if joint_radius is None else joint_radius
    if joint > block:
        raise MetropolisError(
            f"the joint radius {joint:g} exceeds {block:g}, "
            "the larger of the perception radius and twice the velocity"
        )
    return Rule(max(2 * max_velocity, joint), block)


def lockstep(
    perception_radius: float = 0,  # noqa: ARG001
    max_velocity: float = 0,  # noqa: ARG001
    joint_radius: float | None = None,  # noqa: ARG001
) -> Rule:
    """Everybody is one cluster: a barrier after every step."""
    return Rule(math.inf, math.inf)


def unordered(
    perception_radius: float = 0,  # noqa: ARG001
    max_velocity: float = 0,  # noqa: ARG001
    joint_radius: float | None = None,  # noqa: ARG001
) -> Rule:
    """Only an agent's own order: a bound no causal execution can beat, itself not causal."""
    return Rule(-math.inf, -math.inf)


MakeRule = Callable[[float, float, float | None], Rule]
"""(perception_radius, max_velocity, joint_radius or None for the perception radius)."""

RULES: dict[str, MakeRule] = {
    "lockstep": lockstep,
    "conservative": conservative,
    "versioned": versioned,
    "no_dependency": unordered,
}


def rule_named(
    name: str, perception_radius: float, max_velocity: float, joint_radius: float | None = None
) -> Rule:
    """The rule of the mode `name`; raises MetropolisError when there is none."""
    check_name("rule", name, RULES)
    return RULES[name](perception_radius, max_velocity, joint_radius)
