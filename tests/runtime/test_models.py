"""Runs whose calls ask several models: history, traces, reruns, and simulated instances."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from metropolis._core import InstancePool, Request
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, RefusedError
from metropolis.llm.client import Client
from metropolis.llm.model_choice import ModelChoice
from metropolis.reuse.plan import Band, Plan, PlanPoint, write_plan
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.runtime.replays.bounds import isolated_sim_s
from metropolis.runtime.replays.replay import Setting, cache_choice, replay
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.profiles import load_profile
from metropolis.sim.virtual import VirtualInstances
from metropolis.trace.parquet import read_trace
from metropolis.types import MetropolisError
from tests.runtime.test_live_is_replayed import assert_equal
from tests.runtime.walkers import Meadow, Walker, author

MODES: dict[str, dict[str, Any]] = {
    "sequential": {"mode": "sequential"},
    "lockstep": {"mode": "lockstep"},
    "versioned": {"mode": "out_of_order"},
    "conservative": {"mode": "out_of_order", "rule": "conservative"},
    "optimistic": {"mode": "optimistic"},
}
CHOICES = (("base",), ("base", "talk=chat"), ("base", "talk=other", "@w01=chat", "@w02=other"))
PROFILE = "llama-3-8b/rtx-4090"
MODELS = ("base", "chat", "other")


class Longer(Walker):
    """Its prompts have a long beginning that all walkers share, and one of its own."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        llm_chat, start = llm.chat, "We live on a meadow. " * 30 + f"I am {self.name}. " * 20

        class Prefixed:
            async def chat(self, prompt: str, **options: Any) -> Completion:
                answer: Completion = await llm_chat(start + prompt, **options)
                return answer

        return await super().proceed(observation, Prefixed())


def live(
    choice: tuple[str, ...],
    mode: str,
    seed: int = 3,
    virtual: Any = None,
    walker: type[Walker] = Walker,
    out: Path | None = None,
    **fields: Any,
) -> RunResult:
    models = ModelChoice.parse(choice)
    backend: Any = Scripted(author, name=models.default or "")
    if virtual is not None:
        backend = virtual(backend)
    world = Meadow(5, side=9, joint=2)
    walkers = [walker(name) for name in world.names]
    client = Client(backend, models=models)
    return Simulation(world, walkers, client, seed=seed, out=out, **(MODES[mode] | fields)).run(12)


@pytest.mark.parametrize("choice", CHOICES)
def test_the_history_is_the_same_in_every_mode_and_with_any_models(
    choice: tuple[str, ...],
) -> None:
    plain = live((), "lockstep")
    models = ModelChoice.parse(choice)
    for mode in MODES:
        found = live(choice, mode)
        assert found.history_sha256 == plain.history_sha256, mode
        trace = found.trace
        assert len(trace.calls)
        for call in range(len(trace.calls)):
            agent = trace.meta.agents[trace.calls.agent[call]]
            function = trace.calls.functions[trace.calls.function[call]]
            expected = models.of(agent, function) or models.default
            assert trace.calls.models[trace.calls.model[call]] == expected


def plans(folder: Path) -> str:
    for receiver in MODELS[1:]:
        plan = Plan(
            sender="base", receiver=receiver, layers=32, metric="m", data="d", prompt_tokens=512,
            sender_quality=None, receiver_quality=0.5, source="assumed",
            points=(PlanPoint((Band(8, 19),), 0.5, 0.4),),
        )  # fmt: skip
        write_plan(plan, folder / f"{receiver}.json")
    return f"droidspeak:plans={folder}"


@pytest.mark.parametrize("mode", ["versioned", "lockstep", "conservative"])
def test_a_run_with_models_and_reuse_takes_as_long_as_its_replay(tmp_path: Path, mode: str) -> None:
    fleet = SimulatedFleet.parse([f"{model}={PROFILE}" for model in MODELS])
    reuse, made, hits = plans(tmp_path), list[VirtualInstances](), 0

    def virtual(backend: Any) -> VirtualInstances:
        choice = cache_choice(Setting(Meadow(1).metric, 1, 1, fleet, reuse=reuse))
        assert choice is not None
        made.append(VirtualInstances(backend, choice.fleet, choice=choice))
        return made[-1]

    for seed in (2, 3):
        ran = live(CHOICES[2], mode, seed, virtual, Longer, keep_text=True)
        assert ran.history_sha256 == live((), mode, seed, walker=Longer).history_sha256
        setting = replace(Setting.of(ran.trace.meta, fleet), reuse=reuse)
        replayed = replay(ran.trace, mode, setting)
        assert_equal(mode, replayed.makespan_sim_s, ran.makespan_s)
        counts = made[-1].reused
        assert counts is not None
        assert replayed.reuse == {"name": reuse, **counts.as_row()}
        assert counts.own_tokens > 0
        hits += counts.other_model_hits
    assert hits > 0


def test_calls_run_on_instances_of_their_model() -> None:
    trace = live(CHOICES[2], "lockstep", walker=Longer).trace
    fleet = SimulatedFleet.parse([f"{model}={PROFILE}" for model in (*MODELS, "chat")])
    for dispatcher in (None, "round_robin", "prefix", "kairos", "agentix"):
        for policy in ("step", "kairos"):
            setting = Setting.of(trace.meta, fleet)
            found = replay(
                trace, "versioned", replace(setting, policy=policy, dispatcher=dispatcher)
            )
            hosts = [fleet.instances[index].model for index in found.instance.tolist()]
            assert hosts == [trace.calls.models[index] for index in trace.calls.model.tolist()]


def test_one_model_on_all_instances_is_as_without_names() -> None:
    trace = live(("base",), "lockstep", walker=Longer).trace
    for count in (1, 2):
        for mode in ("versioned", "critical_path", "no_dependency"):
            found = [
                replay(trace, mode, Setting.of(trace.meta, SimulatedFleet.parse([spec])))
                for spec in (f"{PROFILE}:{count}", f"base={PROFILE}:{count}")
            ]
            assert found[0].makespan_sim_s == found[1].makespan_sim_s
            assert (found[0].completed_sim_s == found[1].completed_sim_s).all()


def test_a_lone_call_is_timed_on_an_instance_of_its_model() -> None:
    trace = live(CHOICES[1], "lockstep", walker=Longer).trace
    profiles = {"base": "llama-3-8b/l4", "chat": "llama-3-8b/h100"}
    fleet = SimulatedFleet.parse([f"{model}={profile}" for model, profile in profiles.items()])
    calls = trace.calls
    for call, found_s in enumerate(isolated_sim_s(trace, fleet, prefix_reuse=False).tolist()):
        lengths = Request(int(calls.prompt_tokens[call]), int(calls.output_tokens[call]))
        profile = load_profile(profiles[calls.models[calls.model[call]]])
        assert found_s == InstancePool.isolated_sim_s(profile, lengths)


def test_a_model_without_an_instance_is_one_sentence() -> None:
    trace = live(CHOICES[1], "lockstep").trace
    setting = Setting.of(trace.meta, SimulatedFleet.parse([f"base={PROFILE}"]))
    with pytest.raises(MetropolisError, match="no instance hosts the model 'chat'"):
        replay(trace, "versioned", setting)

    def virtual(backend: Any) -> VirtualInstances:
        return VirtualInstances(backend, setting.fleet)

    with pytest.raises(RefusedError, match=r"talk of 'w\d\d' at step \d+: no instance hosts"):
        live(CHOICES[1], "lockstep", virtual=virtual)


def test_bounds_are_refused_with_reuse() -> None:
    trace = live(("base",), "lockstep").trace
    fleet = SimulatedFleet.parse([f"base={PROFILE}"])
    with pytest.raises(MetropolisError, match="critical_path is a bound without reuse"):
        replay(trace, "critical_path", replace(Setting.of(trace.meta, fleet), reuse="prefix"))


def test_reuse_of_the_same_model_is_as_prefix_reuse_and_none_as_without() -> None:
    path = Path(__file__).parents[2] / "traces/alderbrook-11-13h.parquet"
    trace = ModelChoice.parse(["base"]).applied_to(read_trace(path).between_hours(12, 12.1))
    for count in (1, 2):
        named = Setting.of(trace.meta, SimulatedFleet.parse([f"base={PROFILE}:{count}"]))
        plain = Setting.of(trace.meta, SimulatedFleet.parse([f"{PROFILE}:{count}"]))
        for reuse, prefix_reuse in (("none", False), ("prefix", True)):
            found = replay(trace, "versioned", replace(named, reuse=reuse))
            expected = replay(trace, "versioned", replace(plain, prefix_reuse=prefix_reuse))
            assert (found.completed_sim_s == expected.completed_sim_s).all()
