"""The two radii give the inequalities of AI Metropolis §3.2 and of `rules.py`."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metropolis.rules.metrics import CHEBYSHEV, EUCLIDEAN, MANHATTAN, PlaneMetric
from metropolis.rules.rules import (
    ROUNDING,
    RULES,
    Rule,
    conservative,
    lockstep,
    rule_named,
    unordered,
    versioned,
)
from metropolis.types import MetropolisError

small = st.integers(0, 12)


@given(small, small, st.integers(1, 9), st.integers(0, 60))
def test_conservative_is_the_published_rule(r: int, v: int, k: int, distance: int) -> None:
    radius = max(r, v)
    rule = conservative(r, v)
    p, q = (0, 0), (distance, 0)
    assert CHEBYSHEV.within(p, q, rule.couple_radius, 0) == (distance <= radius + v)
    blocked = CHEBYSHEV.within(p, q, rule.block_radius, k * v)
    assert blocked == (distance <= radius + (k + 1) * v)


@given(small, small, st.integers(1, 9), st.integers(0, 60))
def test_versioned(r: int, v: int, k: int, distance: int) -> None:
    rule = versioned(r, v)
    p, q = (0, 0), (distance, 0)
    assert CHEBYSHEV.within(p, q, rule.couple_radius, 0) == (distance <= max(2 * v, r))
    blocked = CHEBYSHEV.within(p, q, rule.block_radius, k * v)
    assert blocked == (distance <= max(r, 2 * v) + k * v)
    assert rule.block_radius <= conservative(r, v).block_radius


@pytest.mark.parametrize("metric", [CHEBYSHEV, MANHATTAN, EUCLIDEAN], ids=lambda one: one.name)
@given(
    st.sampled_from([0.1, 0.2, 0.3, 0.7, 1 / 3]),
    st.sampled_from([0.5, 1.0, 1.5, 2.0, 5 / 3]),
    st.integers(-30, 30),
    st.integers(1, 25),
    st.sampled_from([0.0, 1e3, 1e6]),
)
@example(0.1, 1.0, -18, 5, 0.0)
def test_who_comes_into_sight_by_rounded_steps_blocked(
    metric: PlaneMetric, v: float, r: float, start: int, steps: int, far: float
) -> None:
    here = (far + start * v, 0.0)
    at = [(here[0] + r + steps * v, 0.0)]
    for _ in range(steps):
        following = (at[-1][0] - v, 0.0)
        if not metric.within(at[-1], following, 0, v):
            break  # the world refuses this move
        at.append(following)
    for rule in (versioned(r, v), conservative(r, v)):
        for lag in range(1, len(at)):
            for before, after in zip(at, at[lag:], strict=False):
                if metric.perceives(here, after, r):
                    assert metric.within(here, before, rule.block_radius, lag * v)


def test_joint_radius() -> None:
    assert versioned(4, 1, joint_radius=0) == Rule(2 + ROUNDING, 4 + ROUNDING)
    assert versioned(4, 1, joint_radius=3) == Rule(3, 4 + ROUNDING)
    with pytest.raises(MetropolisError, match=r"joint radius 5 exceeds 4"):
        versioned(4, 1, joint_radius=5)


def test_bounds() -> None:
    assert lockstep() == Rule(math.inf, math.inf)
    assert unordered() == Rule(-math.inf, -math.inf)


def test_rules_by_name() -> None:
    assert rule_named("conservative", 4, 1) == Rule(5 + ROUNDING, 5 + ROUNDING)
    assert all(isinstance(rule_named(name, 4, 1), Rule) for name in RULES)
    with pytest.raises(MetropolisError, match="there is no rule 'eager'; there are lockstep, cons"):
        rule_named("eager", 4, 1)


def test_a_cluster_that_may_run_must_not_grow() -> None:
    with pytest.raises(MetropolisError, match="couple radius 5 exceeds the block radius 4"):
        Rule(5, 4)
