"""The two radii give the inequalities of AI Metropolis §3.2 and of `rules.py`."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.rules.metrics import CHEBYSHEV
from metropolis.rules.rules import (
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


def test_joint_radius() -> None:
    assert versioned(4, 1, joint_radius=0) == Rule(2, 4)
    assert versioned(4, 1, joint_radius=3) == Rule(3, 4)
    with pytest.raises(MetropolisError, match=r"joint radius 5 exceeds 4"):
        versioned(4, 1, joint_radius=5)


def test_bounds() -> None:
    assert lockstep() == Rule(math.inf, math.inf)
    assert unordered() == Rule(-math.inf, -math.inf)


def test_rules_by_name() -> None:
    assert rule_named("conservative", 4, 1) == Rule(5, 5)
    assert all(isinstance(rule_named(name, 4, 1), Rule) for name in RULES)
    with pytest.raises(MetropolisError, match="there is no rule 'eager'; there are lockstep, cons"):
        rule_named("eager", 4, 1)


def test_a_cluster_that_may_run_must_not_grow() -> None:
    with pytest.raises(MetropolisError, match="couple radius 5 exceeds the block radius 4"):
        Rule(5, 4)
