"""The shares that a client gives to worker processes, and the purchases it adds from them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.llm.usage import Prices, Purchases, Usage
from metropolis.types import MetropolisError

PRICES = Prices(1e6, 2e6)


def limited(**limits: float) -> Client:
    return Client(Scripted(), prices=PRICES, **limits)  # type: ignore[arg-type]


@given(
    st.integers(1, 9),
    st.integers(9, 1000),
    st.integers(0, 1000),
    st.floats(0, 1000),
    st.integers(0, 1200),
)
def test_shares_together_stay_within_the_limits(
    workers: int, calls: int, tokens: int, cost: float, spent: int
) -> None:
    whole = limited(
        concurrency=calls,
        requests_per_minute=calls,
        tokens_per_minute=calls,
        max_tokens=tokens,
        max_cost=cost,
    )
    whole.charge([Purchases("anybody", "plan", 1, spent, 0)])
    share = whole.for_worker(workers).gate
    assert share.requests is not None
    assert share.tokens is not None
    assert share.concurrency * workers <= calls
    assert share.requests.limit * workers <= calls
    assert share.tokens.limit * workers <= calls
    assert share.token_budget.limit * workers <= max(0, tokens - spent)
    assert share.cost_budget.limit * workers <= max(0.0, cost - spent) * (1 + 1e-9)


def test_without_limits_nothing_is_shared() -> None:
    share = Client(Scripted()).for_worker(3).gate
    assert (share.requests, share.tokens) == (None, None)
    assert math.isinf(share.token_budget.left)
    assert math.isinf(share.cost_budget.left)


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute"])
def test_a_limit_of_less_than_one_each_is_refused(limit: str) -> None:
    with pytest.raises(MetropolisError, match=f"{limit} is 3 and cannot be shared by 4 workers"):
        limited(**{limit: 3}).for_worker(4)


def test_answers_in_the_journal_are_not_charged_twice() -> None:
    client = limited(max_tokens=100, max_cost=100)
    client.gate.token_budget.spent = 30
    client.gate.cost_budget.spent = 40
    client.charge([Purchases("a", "plan", 1, 20, 5), Purchases("b", "talk", 1, 10, 0)])
    assert (client.gate.token_budget.left, client.gate.cost_budget.left) == (65, 60)


def test_purchases_of_other_processes_are_accounted_for() -> None:
    client = limited()
    for buyer in "ab":
        client.add_usage(Purchases(buyer, "plan", 2, 10, 3))
    assert client.usage == {"plan": Usage(calls=4, prompt_tokens=20, output_tokens=6, cost=32)}
