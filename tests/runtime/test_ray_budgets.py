"""Purchases of workers on a real Ray cluster: accounts, budgets and limits per minute."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from metropolis.llm.client import Client
from metropolis.llm.usage import Prices
from metropolis.runtime.live.simulation import Simulation
from metropolis.store.embedded import EmbeddedServer
from metropolis.types import MetropolisError
from tests.runtime.killable import SEED, Logged
from tests.runtime.walkers import Meadow, Walker

STEPS = 12
PRICES = Prices(1.0, 2.0)

pytestmark = pytest.mark.usefixtures("cluster")


def simulation(out: Path, store: str | None, **limits: Any) -> Simulation:
    """Make a simulation of six walkers, with two workers on Ray if there is a store."""
    world = Meadow(6, side=9, joint=1)
    return Simulation(
        world,
        [Walker(name) for name in world.names],
        Client(Logged(out.parent / "bought"), retries=0, prices=PRICES, **limits),
        seed=SEED,
        out=out,
        resume=(out / "run.json").exists(),
        store=store,
        workers="ray:2" if store else 1,
    )


def test_usage_is_that_of_a_run_in_memory(tmp_path: Path, valkey: EmbeddedServer) -> None:
    whole = simulation(tmp_path / "memory", None).run(STEPS)
    result = simulation(tmp_path / "ray", valkey.url).run(STEPS)
    assert whole.usage.keys() == {"think", "talk"} == result.usage.keys()
    for function, of in whole.usage.items():
        found = result.usage[function]
        assert (found.calls, found.prompt_tokens) == (of.calls, of.prompt_tokens)
        assert (found.output_tokens, found.cost) == (of.output_tokens, pytest.approx(of.cost))


@pytest.mark.parametrize("budget", ["max_tokens", "max_cost"])
def test_a_budget_is_never_exceeded(tmp_path: Path, valkey: EmbeddedServer, budget: str) -> None:
    whole = simulation(tmp_path / "memory", None).run(STEPS)
    tokens, cost = (
        whole.prompt_tokens + whole.output_tokens,
        sum(of.cost for of in whole.usage.values()),
    )
    (tmp_path / "bought").unlink()
    out = tmp_path / "it"
    for share in (0.3, 0.3, 3.0):  # one worker of two may do all of the rest
        limit = int(share * tokens) if budget == "max_tokens" else share * cost
        result = simulation(out, valkey.url, **{budget: limit}).run(STEPS)
        store = valkey.store(json.loads((out / "store.json").read_text())["run"])
        bought = store.bought()
        spent = [(one.prompt_tokens, one.output_tokens) for one in bought]
        used = (
            sum(map(sum, spent))
            if budget == "max_tokens"
            else sum(PRICES.cost(*of) for of in spent)
        )
        assert used <= limit
        assert (result.stopped is None) == (share > 1)
        assert share > 1 or "left of a worker's share, one of 2" in str(result.stopped)
    assert result.history_sha256 == whole.history_sha256
    lines = Counter((tmp_path / "bought").read_text().splitlines())
    assert (max(lines.values()), lines.total()) == (1, whole.calls)


def test_limits_per_minute_are_shared(tmp_path: Path, valkey: EmbeddedServer) -> None:
    with pytest.raises(MetropolisError, match="requests_per_minute is 1 and cannot be shared by 2"):
        simulation(tmp_path / "few", valkey.url, requests_per_minute=1).run(STEPS)
    result = simulation(
        tmp_path / "many", valkey.url, requests_per_minute=10_000, tokens_per_minute=10_000_000
    ).run(2)
    assert result.steps == 2
