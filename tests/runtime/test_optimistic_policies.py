"""Agents run ahead under every policy and dispatcher: the history is lockstep's."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from metropolis.policy.named import DISPATCHERS, POLICIES, names_of
from tests.runtime.talkers import ALL_WAYS
from tests.runtime.test_live_is_replayed import Case

OF_RUNS = [*(name for name in names_of(POLICIES) if name != "topology"), "step+kairos", "step+plas"]
"""`topology` needs programs whose stages are known."""


@given(
    seed=st.integers(0, 1 << 30),
    agents=st.integers(3, 7),
    side=st.integers(3, 12),
    instances=st.integers(1, 3),
    policy=st.sampled_from(OF_RUNS),
    dispatcher=st.sampled_from([None, *names_of(DISPATCHERS)]),
)
@example(  # a request of a wrong execution is in flight when another call of the step is refused
    seed=2274537, agents=5, side=3, instances=2, policy="step+kairos", dispatcher="prefix"
)
@settings(max_examples=30)
def test_the_history_is_lockstep_s(
    seed: int, agents: int, side: int, instances: int, policy: str, dispatcher: str | None
) -> None:
    case = Case(seed, agents, side, 8, instances, 0.2, ALL_WAYS)
    ahead = Case(seed, agents, side, 8, instances, 0.2, ALL_WAYS, policy, dispatcher)
    assert ahead.run("optimistic").history_sha256 == case.run("lockstep").history_sha256
