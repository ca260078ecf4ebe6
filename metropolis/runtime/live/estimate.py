"""Estimates the cost of a run from a rehearsal: the same world with its offline author as model.

The rehearsal makes the calls of the run, free of charge. It may stop early; the estimate then
assumes that the remaining steps resemble the rehearsed ones, which is rough if a day has busy and
quiet hours. The rehearsal cannot predict the length of a real model's answers, nor its
consequences: hence the upper bound, with every answer as long as its `max_tokens`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from metropolis.llm.backends.scripted import SCRIPTED, Scripted
from metropolis.llm.base import Completion, Request
from metropolis.llm.client import Client
from metropolis.llm.model_choice import ModelChoice
from metropolis.llm.usage import Prices
from metropolis.runtime.live.simulation import Simulation
from metropolis.runtime.replays.replay import Setting, replay
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.trace.schema import Trace
from metropolis.types import Step
from metropolis.world.scenario import Scenario

MODES = {"lockstep": "lockstep", "out_of_order": "versioned"}
"""Live mode -> replay mode."""


@dataclass(frozen=True)
class Amount:
    """Calls, tokens and cost of one function, or in total."""

    calls: float
    prompt_tokens: float
    output_tokens: float
    output_tokens_max: float
    """The output tokens if every answer has its maximum length."""
    cost: float | None
    cost_max: float | None
    """The cost with `output_tokens_max`; None, like `cost`, without prices."""


@dataclass(frozen=True)
class Estimate:
    """A forecast of a run of `steps`, based on its first `rehearsed_steps`."""

    world: str
    agents: int
    steps: Step
    span_s: float
    """Simulated seconds that the run covers."""
    rehearsed_steps: Step
    rehearsal_wall_s: float
    total: Amount
    functions: Mapping[str, Amount]
    fleet: str
    profile: str
    instances: int
    makespan_sim_s: Mapping[str, float]
    """Simulated duration on these instances, by live mode."""


class _Rehearsal(Scripted):
    """The offline author; sums up the maximum length of the answers by function."""

    def __init__(self, scenario: Scenario, model: str | None) -> None:
        super().__init__(scenario.world.author, name=model or SCRIPTED)
        self.output_tokens_max: dict[str, int] = {}

    async def complete(self, request: Request) -> Completion:
        so_far = self.output_tokens_max.get(request.function, 0)
        self.output_tokens_max[request.function] = so_far + request.max_tokens
        return await super().complete(request)


def estimate_run(
    scenario: Scenario,
    steps: Step,
    seed: int,
    fleet: SimulatedFleet,
    prices: Prices | None = None,
    progress: Callable[[int], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
    models: ModelChoice | None = None,
) -> Estimate:
    """Rehearse `scenario` and scale up to `steps`; calls `progress` after each rehearsed step, and
    stops the rehearsal once `should_stop` returns True. Calls have the `models` of the run.

    Consumes the world and the agents of `scenario`. Raises MetropolisError if the rehearsal fails,
    as the run would.
    """
    models = models or ModelChoice()
    author = _Rehearsal(scenario, models.default)
    # the virtual latency lets the trace show which calls of a step depend on each other
    client = Client(VirtualInstances(author, fleet), timeout_s=inf, models=models)
    simulation = Simulation(scenario.world, scenario.agents, client, mode="lockstep", seed=seed)
    began_wall_s = time.perf_counter()
    for _ in simulation.steps(steps):
        progress(1)
        if should_stop():
            simulation.interrupt()
    result = simulation.result()
    wall_s = time.perf_counter() - began_wall_s
    factor = steps / result.steps
    functions = _amounts(result.trace, author.output_tokens_max, factor, prices)
    meta = result.trace.meta  # with radii that a replay accepts
    setting = Setting(
        scenario.world.metric,
        meta.perception_radius,
        meta.max_velocity,
        fleet,
        joint_radius=meta.joint_radius,
    )
    return Estimate(
        world=scenario.world.name,
        agents=len(scenario.agents),
        steps=steps,
        span_s=steps * scenario.world.step_s,
        rehearsed_steps=result.steps,
        rehearsal_wall_s=wall_s,
        total=_sum(functions, prices),
        functions=functions,
        fleet=f"{fleet}",
        profile=fleet.profile_names,
        instances=len(fleet),
        makespan_sim_s={
            live: replay(result.trace, mode, setting).makespan_sim_s * factor
            for live, mode in MODES.items()
        },
    )


def _amounts(
    trace: Trace, output_max: Mapping[str, int], factor: float, prices: Prices | None
) -> dict[str, Amount]:
    amounts = {}
    for index, function in enumerate(trace.calls.functions):
        of = trace.calls.function == index
        prompt = float(trace.calls.prompt_tokens[of].sum()) * factor
        output = float(trace.calls.output_tokens[of].sum()) * factor
        amounts[function] = _amount(
            float(of.sum()) * factor, prompt, output, output_max[function] * factor, prices
        )
    return amounts


def _sum(amounts: Mapping[str, Amount], prices: Prices | None) -> Amount:
    parts = amounts.values()
    return _amount(
        sum(amount.calls for amount in parts),
        sum(amount.prompt_tokens for amount in parts),
        sum(amount.output_tokens for amount in parts),
        sum(amount.output_tokens_max for amount in parts),
        prices,
    )


def _amount(
    calls: float, prompt: float, output: float, output_max: float, prices: Prices | None
) -> Amount:
    cost = None if prices is None else prices.cost(prompt, output)
    cost_max = None if prices is None else prices.cost(prompt, output_max)
    return Amount(calls, prompt, output, output_max, cost, cost_max)
