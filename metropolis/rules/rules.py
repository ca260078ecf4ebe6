"""The rules of causality: a rule is two radii over one predicate.

Agent a is about to run step s_a at p_a, and k = s_a - s_b. Executing a step reads the world as of
all writes of the steps before it. With `Metric.within`:

* a and b are *coupled* iff k = 0 and ``within(p_a, p_b, couple_radius, 0)``;
* a is *blocked* by b iff k > 0 and ``within(p_a, p_b, block_radius, k * max_velocity)``.

A cluster may run when no member is blocked. An agent ahead never blocks an agent behind it, so
agents at the floor can always run. ``couple_radius <= block_radius`` is required: it ensures that
an agent not blocked by b is not coupled with b when b arrives at the agent's step, so a cluster
that may run never grows. With r = perception_radius and v = max_velocity:

**conservative** (AI Metropolis §3.2): both radii are ``max(r, v) + v``. *Read after write*: the
pending writes of b land up to k*v away and a reads r, so the distance must exceed r + k*v. *Write
after read*: b may be k*v away when it runs step s_a, and must not see the writes of a within v at
the end of that step, so the distance must exceed r + (k+1)*v, the larger bound. The published rule
assumes r >= v; otherwise two writers can meet outside all perception, hence ``max(r, v)``.
Invariant for all pairs at different steps: distance > max(r, v) + (|k|-1)*v.

**versioned**: every value carries the step that wrote it, and a reader at step s sees the newest
version below s. That leaves read after write (r + k*v) and two writers of one step, which must be
resolved together (2v): the block radius is ``max(r, 2v)``, and agents at the same step are coupled
within ``max(2v, joint_radius)``, where `joint_radius` is the distance within which the world lets
two agents act together in a step.

Positions and distances are rounded. So k steps may lead further than k*v, and two writers of one
thing, each at v from it, may be more than 2v apart: all radii that depend on v are larger by
ROUNDING. Between whole numbers this changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from metropolis.names import check_name
from metropolis.types import MetropolisError

ROUNDING = 1e-6
"""More than the errors of rounding add up to in 10,000 steps at coordinates of a million."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Two radii in the world's unit of distance; infinite: all agents, negative: none."""

    couple_radius: float
    block_radius: float

    def __post_init__(self) -> None:
        if not self.couple_radius <= self.block_radius:
            raise MetropolisError(
                f"the couple radius {self.couple_radius:g} exceeds the block radius "
                f"{self.block_radius:g}; a cluster that may run could still grow"
            )


def conservative(perception_radius: float, max_velocity: float) -> Rule:
    """The rule of AI Metropolis §3.2, for worlds that keep only the newest version of a value.

    It couples all agents that could act together: its radius is at least versioned's.
    """
    radius = max(perception_radius, max_velocity) + max_velocity + ROUNDING
    return Rule(radius, radius)


def versioned(
    perception_radius: float, max_velocity: float, joint_radius: float | None = None
) -> Rule:
    """The rule for worlds whose values carry the step that wrote them.

    `joint_radius` defaults to `perception_radius`; at most ``max(r, 2v)``.
    """
    block = max(perception_radius, 2 * max_velocity)
    joint = perception_radius if joint_radius is None else joint_radius
    if joint > block:
        raise MetropolisError(
            f"the joint radius {joint:g} exceeds {block:g}, "
            "the larger of the perception radius and twice the velocity"
        )
    couple = block if math.isinf(block) else max(2 * max_velocity + ROUNDING, joint)
    return Rule(couple, block + ROUNDING)


def lockstep() -> Rule:
    """All agents are one cluster: a barrier after every step."""
    return Rule(math.inf, math.inf)


def unordered() -> Rule:
    """Only each agent's own order: not causal itself, a bound that no causal execution can beat."""
    return Rule(-math.inf, -math.inf)


MakeRule = Callable[[float, float, float | None], Rule]
"""(perception_radius, max_velocity, joint_radius or None for the perception radius)."""

RULES: dict[str, MakeRule] = {
    "lockstep": lambda *_: lockstep(),
    "conservative": lambda radius, velocity, _: conservative(radius, velocity),
    "versioned": versioned,
    "no_dependency": lambda *_: unordered(),
}


def rule_named(
    name: str, perception_radius: float, max_velocity: float, joint_radius: float | None = None
) -> Rule:
    """The rule of the mode `name`; raises MetropolisError when there is none."""
    check_name("rule", name, RULES)
    return RULES[name](perception_radius, max_velocity, joint_radius)
