"""Instances that host a model: where calls run, and how long they take."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis._core import Request
from metropolis.policy.named import DISPATCHERS, POLICIES, named, names_of
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.options import PoolOptions
from metropolis.sim.profiles import load_profile
from metropolis.sim.reference import ReferencePool
from metropolis.sim.workload_simulation import WorkloadResult, WorkloadSimulation
from metropolis.trace.programs import PlannedCall, Program

PROFILE = "llama-3-8b/rtx-4090"
MODELS = ("base", "chat")


def programs(seed: int, count: int) -> list[Program]:
    """Single calls of random models."""
    draw, arrival_s, found = Random(seed), 0.0, []
    for number in range(count):
        arrival_s += draw.choice([0.0, 0.1, 0.5])
        call = PlannedCall(
            draw.choice("fg"), draw.randint(1, 4000), draw.randint(1, 60), model=draw.choice(MODELS)
        )
        found.append(Program(f"{number}", arrival_s, (call,)))
    return found


def serve(arriving: list[Program], fleet: SimulatedFleet, *plugins: str) -> WorkloadResult:
    policy, dispatcher = plugins
    return WorkloadSimulation(
        arriving,
        fleet.profiles,
        named(POLICIES, policy)(),
        named(DISPATCHERS, dispatcher)(fleet.dispatcher_view()),
        PoolOptions(),
    ).run()


@given(
    st.integers(0, 1 << 30),
    st.sampled_from(["fcfs", "step", "kairos", "atlas"]),
    st.sampled_from(names_of(DISPATCHERS)),
)
@settings(max_examples=20, deadline=None)
def test_a_call_runs_on_an_instance_of_its_model(seed: int, policy: str, dispatcher: str) -> None:
    fleet = SimulatedFleet.parse([f"base={PROFILE}:2", f"chat={PROFILE}", f"other={PROFILE}"])
    arriving = programs(seed, 12)
    served = serve(arriving, fleet, policy, dispatcher)
    assert len(served.requests) == len(arriving)
    for one in served.requests:
        assert fleet.instances[one.instance].model == one.request.model


@given(st.integers(0, 1 << 30))
@settings(max_examples=15, deadline=None)
def test_models_do_not_delay_each_other(seed: int) -> None:
    """Each instance completes its calls when the specification does that has only these."""
    fleet = SimulatedFleet.parse([f"{model}={PROFILE}" for model in MODELS])
    arriving = programs(seed, 8)
    served = serve(arriving, fleet, "fcfs", "least_used")
    completed = {one.request.program: one.completed_s for one in served.requests}
    for model in MODELS:
        pool = ReferencePool(load_profile(PROFILE))
        mine = [each for each in arriving if each.calls[0].model == model]
        for number, program in enumerate(mine):
            (call,) = program.calls
            request = Request(call.prompt_tokens, call.output_tokens)
            pool.submit(number, request, program.arrival_s)
        finished = pool.advance(1e6)
        assert len(finished) == len(mine)
        for one in finished:
            assert completed[mine[one.id].name] == one.last_token_sim_s
