"""Programs in virtual time: no call is lost, parents run first, times are those of instances."""

from __future__ import annotations

from itertools import count, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis._core import simulate
from metropolis.dispatch.base import Fleet
from metropolis.policy.agentix.policy import Plas
from metropolis.policy.named import DISPATCHERS, POLICIES, named, names_of
from metropolis.sim.options import PoolOptions
from metropolis.sim.profiles import load_profile
from metropolis.sim.workload_simulation import WorkloadResult, WorkloadSimulation
from metropolis.trace.generate.agentic import APPLICATIONS, CO_LOCATED, workload
from metropolis.trace.generate.agentix import MIXED
from metropolis.trace.generate.agentix import workload as chats
from metropolis.trace.programs import PlannedCall, Program
from metropolis.types import MetropolisError

PROFILE = load_profile("llama-3-8b/l4")


def serve(
    programs: list[Program], policy: str, dispatcher: str, instances: int = 2
) -> WorkloadResult:
    fleet = Fleet.uniform(instances, PROFILE.kv_capacity_tokens, 12.0)
    return WorkloadSimulation(
        programs,
        [PROFILE] * instances,
        named(POLICIES, policy)(),
        named(DISPATCHERS, dispatcher)(fleet),
        PoolOptions(),
    ).run()


@pytest.mark.parametrize("dispatcher", names_of(DISPATCHERS))
@pytest.mark.parametrize("policy", names_of(POLICIES))
def test_every_call_is_answered_once_and_after_its_parents(policy: str, dispatcher: str) -> None:
    programs = workload(CO_LOCATED, 60, 4.0, seed=3)
    served = serve(programs, policy, dispatcher)
    assert sorted(one.program.name for one in served.programs) == sorted(p.name for p in programs)
    assert len(served.requests) == sum(len(program.calls) for program in programs)
    assert len({served.request.id for served in served.requests}) == len(served.requests)
    for program in programs:
        mine = [e for e in served.requests if e.request.program == program.name]
        mine.sort(key=lambda e: e.request.arrived_s)  # every workload here is a chain
        assert [e.output_tokens for e in mine] == [call.output_tokens for call in program.calls]
        for before, after in pairwise(mine):
            assert after.request.arrived_s == before.completed_s <= after.started_s
            assert after.request.upstream == before.request.function
        (ended,) = [one.ended_sim_s for one in served.programs if one.program == program]
        assert ended == mine[-1].completed_s


class _Restless(Plas):
    """Makes the scheduler check again at every turn whether requests fit."""

    @property
    def running_version(self) -> int:  # type: ignore[override]
        return next(self.looks)

    @running_version.setter
    def running_version(self, value: int) -> None:
        pass

    def __init__(self) -> None:
        self.looks = count()
        super().__init__()


@given(st.integers(0, 10_000), st.floats(1.0, 20.0), st.booleans())
@settings(max_examples=15, deadline=None)
def test_skipping_held_back_requests_changes_nothing(
    seed: int, per_s: float, prefix_reuse: bool
) -> None:
    programs, engine = chats(MIXED, 20, per_s, seed), load_profile("llama-3-8b/a100")
    engine.max_sequences, fleet = 4, Fleet.uniform(1, engine.kv_capacity_tokens, 12.0)

    def served(policy: Plas) -> WorkloadResult:
        dispatcher = named(DISPATCHERS, "least_used")(fleet)
        return WorkloadSimulation(
            programs, [engine], policy, dispatcher, PoolOptions(prefix_reuse)
        ).run()

    assert served(Plas()) == served(_Restless())


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 900), st.integers(1, 300)), min_size=1))
def test_programs_of_one_call_take_as_long_as_simulate(calls: list[tuple[float, int, int]]) -> None:
    programs = [
        Program(f"{n:06}", at, (PlannedCall("f", prompt, out),))
        for n, (at, prompt, out) in enumerate(sorted(calls))
    ]
    served = serve(programs, "fcfs", "round_robin", instances=1)
    found = {one.program.name: one.ended_sim_s for one in served.programs}
    alone = simulate(PROFILE, *(np.array(column) for column in zip(*sorted(calls), strict=True)))
    assert [found[p.name] for p in programs] == pytest.approx(alone["last_token_sim_s"].tolist())


def test_a_call_is_sent_after_its_delay_and_the_delay_is_not_queueing() -> None:
    calls = (PlannedCall("f", 100, 10, delay_s=1.5), PlannedCall("f", 100, 10, (0,), delay_s=40.0))
    programs = [Program("tools", 2.0, calls), Program("other", 10.0, (PlannedCall("f", 9, 9),))]
    served = serve(programs, "plas", "round_robin", instances=1)
    first, other, second = served.requests  # the other program is served during the tool's run
    assert other.request.program == "other"
    assert first.request.arrived_s == 3.5
    assert second.request.arrived_s == first.completed_s + 40.0
    (ended,) = [one for one in served.programs if one.program.name == "tools"]
    assert ended.ended_sim_s == second.completed_s
    assert ended.queueing_sim_s == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("delay_s", [0.0, 2.0])
@pytest.mark.parametrize("lengths", [(200, 10), (10, 200)])
def test_the_parent_that_completes_last_triggers_a_call(
    lengths: tuple[int, int], delay_s: float
) -> None:
    children = [PlannedCall(name, 9, tokens) for name, tokens in zip("bc", lengths, strict=True)]
    program = Program("p", 0.0, (*children, PlannedCall("d", 9, 9, (0, 1), delay_s=delay_s)))
    *_, last, joined = serve([program], "kairos", "round_robin").requests
    assert joined.request.upstream == last.request.function == "bc"[lengths.index(200)]


@pytest.mark.parametrize("application", [*APPLICATIONS, CO_LOCATED])
def test_a_workload_is_the_same_at_every_rate(application: str) -> None:
    slow, fast = (workload(application, 40, rate, seed=1) for rate in (1.0, 10.0))
    assert [program.calls for program in slow] == [program.calls for program in fast]
    at = [[program.arrival_s for program in found] for found in (slow, fast)]
    assert at[0] == pytest.approx([10 * arrival_s for arrival_s in at[1]])
    assert workload(application, 40, 1.0, seed=1) == slow
    assert workload(application, 40, 1.0, seed=2) != slow


def test_an_invalid_program_is_refused() -> None:
    with pytest.raises(MetropolisError, match="call 0: a parent must be an earlier call"):
        Program("p", 0.0, (PlannedCall("f", 1, 1, (0,)),))
    with pytest.raises(MetropolisError, match=r"call 0: delay_s is -1\.0; it should be a number"):
        Program("p", 0.0, (PlannedCall("f", 1, 1, delay_s=-1.0),))
    with pytest.raises(MetropolisError, match="has no tokens"):
        Program("p", 0.0, (PlannedCall("f", 1, 0),))
    with pytest.raises(MetropolisError, match="there is no application 'XY'; there are QA, RG, CG"):
        workload("XY", 1, 1.0, 0)
    with pytest.raises(MetropolisError, match="'lifo' is not among the policies: atlas, fcfs"):
        named(POLICIES, "lifo")
    with pytest.raises(MetropolisError, match="topology needs to know how many stages are left"):
        serve([Program("p", 0.0, (PlannedCall("f", 1, 1),))], "topology", "round_robin")
