"""Fleets of different simulated instances: their specification, and the speed of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from metropolis.dispatch.fixed import LeastLoaded
from metropolis.policy.fixed import Fcfs
from metropolis.sim.engine_rules import SGLANG
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.options import PoolOptions
from metropolis.sim.profiles import FOLDER, load_entry
from metropolis.sim.workload_simulation import WorkloadSimulation
from metropolis.trace.programs import PlannedCall, Program
from metropolis.types import MetropolisError

L4, LARGE = "llama-3-8b/l4", "llama-3-70b/a100-tp4"


def test_a_list_of_specifications_is_a_fleet() -> None:
    fleet = SimulatedFleet.parse([f"{L4}:2", LARGE, L4])
    assert [each.name for each in fleet.instances] == [L4, L4, LARGE, L4]
    assert [(each.model, each.tensor_parallel) for each in fleet.kinds] == [(None, 1), (None, 4)]
    assert f"{fleet}" == f"3 x {L4} + 1 x {LARGE} (7 GPUs)"
    assert f"{SimulatedFleet.parse([f'{L4}:4'])}" == f"{SimulatedFleet.uniform(L4, 4)}"


def test_a_fleet_follows_the_rules_of_an_engine() -> None:
    fleet = SimulatedFleet.parse([f"{L4}:2", LARGE]).under(SGLANG)
    assert f"{fleet}" == f"2 x {L4} + 1 x {LARGE} (6 GPUs), rules of sglang"
    assert [each.chunk_tokens for each in fleet.profiles] == [8192] * 3
    assert fleet.instances[0] is fleet.instances[1]
    assert SimulatedFleet.uniform(L4).profiles[0].chunk_tokens == 2048
    options = fleet.of_size(5).pool_options(prefix_reuse=True)
    assert options == PoolOptions(prefix_reuse=True, schedule="prefill_first")


def test_a_profile_file_may_have_a_count(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((FOLDER / "mixtral-8x7b.toml").read_text())
    (one, other) = SimulatedFleet.parse([f"{path}/a100-tp2:2"]).instances
    assert one is other
    assert (one.model, one.tensor_parallel) == (None, 2)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (f"{L4}:0", "write PROFILE, PROFILE:COUNT or"),
        (f"{L4}:many", "write PROFILE, PROFILE:COUNT or"),
        (f"{L4}:1000000", "at most 65,536 instances"),
        pytest.param(f"{L4}:{'9' * 5000}", "at most 65,536 instances", id="thousands of digits"),
        ("llama-3-8b/l5:2", "there is no profile 'llama-3-8b/l5'"),
        (":2", "there is no profile ''"),
        (f"={L4}", "NAME=PROFILE:COUNT with the model's name"),
        (f" ={L4}:2", "NAME=PROFILE:COUNT with the model's name"),
        ("base=", "there is no profile ''"),
    ],
)
def test_a_wrong_specification_is_one_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        SimulatedFleet.parse([spec])


def test_instances_may_host_a_named_model() -> None:
    fleet = SimulatedFleet.parse([f"base={L4}:2", f"chat={L4}"])
    assert f"{fleet}" == f"2 x base={L4} + 1 x chat={L4}"
    assert [each.models for each in fleet.dispatcher_view().instances] == [
        ("base",), ("base",), ("chat",),
    ]  # fmt: skip
    assert fleet.hosted == {"base", "chat"}
    fleet.check_hosts(["base", "chat"])
    with pytest.raises(MetropolisError, match=r"hosts the model 'bas' \(did you mean 'base'\?\)"):
        fleet.check_hosts(["base", "bas"])
    with pytest.raises(MetropolisError, match="calls have no model, and the instances host base"):
        fleet.check_hosts([""])
    any_model = SimulatedFleet.parse([f"base={L4}", L4])
    assert any_model.hosted is None
    any_model.check_hosts(["", "other"])


def test_a_dispatcher_sees_the_values_of_each_instance() -> None:
    small, large = SimulatedFleet.parse([L4, LARGE]).dispatcher_view().instances
    assert (small.models, large.models) == ((), ())
    assert small.capacity_tokens == load_entry(L4).profile.kv_capacity_tokens
    assert large.capacity_tokens == load_entry(LARGE).profile.kv_capacity_tokens
    assert small.tokens_per_s < large.tokens_per_s


def test_each_instance_has_the_speed_of_its_profile() -> None:
    fleet = SimulatedFleet.parse([L4, "llama-3-8b/h100"])
    programs = [Program(f"{n}", 0.0, (PlannedCall("chat", 100, 50),)) for n in range(8)]
    dispatcher = LeastLoaded(fleet.dispatcher_view())
    served = WorkloadSimulation(programs, fleet.profiles, Fcfs(), dispatcher, PoolOptions()).run()
    slow, fast = ([e.latency_s for e in served.requests if e.instance == i] for i in (0, 1))
    assert len(slow) == len(fast) == 4
    assert min(slow) > 5 * max(fast)
