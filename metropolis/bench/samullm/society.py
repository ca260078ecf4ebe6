"""Section `society`: three models of a society on eight GPUs, planned from its trace.

Generated days of LargeVille: a large model plans, a middle one converses, a small one has the rest.
In the mix `day` conversation and planning go on together, as generated. In `halves` agents plan
until two in the afternoon and converse from then on: the other calls of both are left out. A second
table gives the changing plan other loading times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from rich.console import Console

from metropolis.bench.droidspeak.tables import print_table
from metropolis.llm.model_choice import ModelChoice
from metropolis.plan.machine import LoadingTime, Machine
from metropolis.plan.society.allocation import Models
from metropolis.plan.society.judge import Judge
from metropolis.plan.society.search import SocietyPlan, plan_society
from metropolis.trace.generate.largeville import generate
from metropolis.trace.schema import Trace

KIND = "simulated"
LARGE, MIDDLE, SMALL = "llama-3-70b", "vicuna-13b", "chatglm3-6b"
PLANNING = (
    *("wake_up_hour", "daily_plan", "revise_identity", "hourly_schedule", "task_decomp"),
    *("new_decomp_schedule", "insight_and_guidance"),
)
CONVERSATION = (
    *("decide_to_talk", "decide_to_react", "summarize_relationship", "iterative_convo"),
    *("summarize_conversation", "planning_thought_on_convo", "memo_on_convo"),
)
CHANGE_HOUR = 14
"""When planning ends and conversation begins in the mix `halves`."""
MODES = {"out_of_order": "versioned", "lockstep": "lockstep"}
FACTORS = (0.0, 1.0, 4.0, 16.0, 64.0)
"""Factors of the loading times in the second table."""


@dataclass(frozen=True)
class Case:
    """A society and what it does."""

    agents: int
    hours: tuple[float, float]
    mix: str
    mode: str
    """A key of `MODES`."""


QUICK = (Case(10, (12.0, 16.0), "halves", "out_of_order"),)
CASES = (
    *(Case(100, (0.0, 24.0), mix, mode) for mix in ("day", "halves") for mode in MODES),
    *(Case(500, (10.0, 18.0), mix, mode) for mix in ("day", "halves") for mode in MODES),
)


def runs(quick: bool) -> int:
    """Number of steps that `measure` reports."""
    return len(_cases(quick)) + len(FACTORS)


def measure(quick: bool, seed: int, advance: Callable[[int], None]) -> list[dict[str, Any]]:
    """One row for each case and plan, and one for each loading time."""
    rows = []
    for case in _cases(quick):
        trace, plan = _planned(case, seed)
        rows += [_row(case, trace, plan, number) for number in range(len(plan.candidates))]
        advance(1)
        if case.mix == "halves" and case.mode == "out_of_order" and not _has_factors(rows):
            rows += list(_by_loading(case, trace, plan, advance))
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print both tables."""
    plans = [row for row in rows if "plan" in row]
    even = {_case(row): row["makespan_sim_s"] for row in plans if row["plan"] == "even"}
    print_table(
        console,
        "Simulated: three models of a society on 8 x A100-80G",
        ["society", "mode", "plan", "makespan\nsim_s", "against\neven", "GPUs\nbusy", "search\ns"],
        (
            (
                f"{row['agents']} agents, {row['hours']} h, {row['mix']}",
                row["mode"],
                row["plan"] + (f" x {changes}" if (changes := len(row["phases"]) - 1) else ""),
                f"{row['makespan_sim_s']:,.0f}",
                f"{even[_case(row)] / row['makespan_sim_s']:.2f} x",
                f"{row['gpus_busy']:.0%}",
                f"{row['search_wall_s']:,.0f}",
            )
            for row in plans
        ),
        f"{LARGE} plans, {MIDDLE} converses, {SMALL} has the rest. fixed: one allocation; changing "
        "x N: with N\nchanges. search: planning and all replays. Profiles and loading times are "
        "estimates. Allocations:",
    )
    for row in plans:
        phases = "; ".join(f"from step {p['step']}: {p['models']}" for p in row["phases"])
        console.print(f"  {row['agents']} {row['mix']} {row['mode']} {row['plan']}: {phases}")
    console.print()
    loading = [row for row in rows if "loading_factor" in row]
    print_table(
        console,
        "Simulated: the changing plan with other loading times",
        ["loading times", "longest\ns", "makespan\nsim_s", "one allocation\nsim_s", "faster"],
        (
            (
                f"{row['loading_factor']:g} x",
                f"{row['longest_load_s']:.0f}",
                f"{row['makespan_sim_s']:,.0f}",
                f"{row['fixed_sim_s']:,.0f}",
                f"{row['fixed_sim_s'] / row['makespan_sim_s']:.2f} x",
            )
            for row in loading
        ),
        f"{loading[0]['agents']} agents out of order, mix halves; the plan is not searched again.",
    )


def _planned(case: Case, seed: int) -> tuple[Trace, SocietyPlan]:
    trace = generate(case.agents, case.hours, seed)
    calls = trace.calls
    names = [
        LARGE if function in PLANNING else MIDDLE if function in CONVERSATION else SMALL
        for function in calls.functions
    ]
    trace = ModelChoice(by_function=dict(zip(calls.functions, names, strict=True))).applied_to(
        trace
    )
    if case.mix == "halves":
        model = np.array(names)[calls.function]
        is_early = calls.step < (CHANGE_HOUR - trace.hour_of_step(0)) * 3600 / trace.meta.step_s
        is_kept = np.where(model == LARGE, is_early, (model == SMALL) | ~is_early)
        trace = replace(trace, calls=trace.calls.keep(is_kept))
    return trace, plan_society(trace, Machine(), mode=MODES[case.mode])


def _row(case: Case, trace: Trace, plan: SocietyPlan, number: int) -> dict[str, Any]:
    candidate = plan.candidates[number]
    return {
        "agents": case.agents,
        "hours": f"{case.hours[0]:g}-{case.hours[1]:g}",
        "mix": case.mix,
        "mode": case.mode,
        "calls": len(trace.calls),
        "plan": candidate.name,
        "makespan_sim_s": candidate.makespan_sim_s,
        "gpus_busy": candidate.gpus_busy,
        "phases": [
            {"step": each.step, "models": plan.models.text(each.allocation)}
            for each in candidate.phases
        ],
        "replays": plan.replays,
        "search_wall_s": plan.search_wall_s,
    }


def _by_loading(
    case: Case, trace: Trace, plan: SocietyPlan, advance: Callable[[int], None]
) -> Iterable[dict[str, Any]]:
    """The changing plan, or else the fixed one, with multiples of the loading times."""
    phases = (plan.changing or plan.fixed).phases
    allocations = [phase.allocation for phase in phases]
    if len(allocations) == 1:  # a plan without changes loads its models once
        allocations.insert(0, (None,) * len(plan.models.names))
    usual = LoadingTime()
    for factor in FACTORS:
        loading = LoadingTime(**{name: factor * of for name, of in asdict(usual).items()})
        machine = Machine(loading=loading)
        judge = Judge(trace, Models(machine, plan.models.names), plan.mode, lambda _: None)
        yield {
            "loading_factor": factor,
            "agents": case.agents,
            "longest_load_s": max(
                machine.load_s(name, each)
                for before, after in pairwise(allocations)
                for name, was, each in zip(plan.models.names, before, after, strict=True)
                if each is not None and each != was
            ),
            "makespan_sim_s": judge.day(phases).makespan_sim_s,
            "fixed_sim_s": plan.fixed.makespan_sim_s,
        }
        advance(1)


def _cases(quick: bool) -> Sequence[Case]:
    return QUICK if quick else CASES


def _has_factors(rows: Sequence[dict[str, Any]]) -> bool:
    return any("loading_factor" in row for row in rows)


def _case(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["agents"], row["mix"], row["mode"]
