"""Section `smallville`: a run of SmallVille with three fine-tuned models beside their base.

The same calls are replayed out of order on one instance per model. `exact` reuses all of the base's
cache without recomputation (activated LoRA), so no plan can reuse more. `free` is a bound: prefills
take no time, so no cache can save more. A second table says how much of each model's prompts
begins like earlier prompts of the base, and of its own: what the base's cache adds is the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from itertools import accumulate, takewhile
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from metropolis.bench.droidspeak.simulate import INSTRUCT, LOSS, plan_for
from metropolis.bench.droidspeak.tables import print_table
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.llm.model_choice import ModelChoice
from metropolis.llm.tokens import PIECE_TOKENS, prefix_pieces
from metropolis.reuse.plan import write_plan
from metropolis.runtime.live.simulation import Simulation
from metropolis.runtime.replays.replay import ReplayResult, Setting, replay
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.trace.schema import Trace
from metropolis.world.scenario import make_scenario

KIND = "simulated"
MODELS = (
    "base",
    "wake_up_hour=plan,daily_plan=plan,revise_identity=plan,hourly_schedule=plan,task_decomp=plan,"
    "new_decomp_schedule=plan",
    "decide_to_talk=converse,decide_to_react=converse,summarize_relationship=converse,"
    "iterative_convo=converse,summarize_conversation=converse",
    "event_poignancy=reflect,thought_poignancy=reflect,chat_poignancy=reflect,focal_pt=reflect,"
    "insight_and_guidance=reflect,planning_thought_on_convo=reflect,memo_on_convo=reflect",
)
"""Values of --model: the functions that plan, converse and reflect have models of their own; all
others, such as actions, use the base."""
VARIANTS = ("plan", "converse", "reflect")
PROFILES = ("llama-3-8b/a100", "llama-3-8b/l4")
REUSES = ("none", "prefix", "droidspeak", "exact", "free")
MODE = "versioned"


def runs(quick: bool) -> int:
    """Number of steps that `measure` reports."""
    return 1 + len(_profiles(quick)) * len(REUSES)


def measure(quick: bool, seed: int, advance: Callable[[int], None]) -> list[dict[str, Any]]:
    """One row for each profile and reuse, and one for each fine-tuned model."""
    trace = _trace(40 if quick else None, seed)
    advance(1)
    rows = []
    prompt_tokens = int(trace.calls.prompt_tokens.sum())
    with TemporaryDirectory() as folder:
        for name in VARIANTS:
            write_plan(plan_for(INSTRUCT, name), Path(folder) / f"{name}.json")
        for profile in _profiles(quick):
            for reuse in REUSES:
                result = _replayed(trace, profile, reuse, folder)
                counts = result.reuse or {}
                own, other = counts.get("own_tokens", 0), counts.get("reused_tokens", 0)
                rows.append(
                    {
                        "profile": profile,
                        "reuse": reuse,
                        "makespan_sim_s": result.makespan_sim_s,
                        "calls": result.calls,
                        "prompt_tokens": prompt_tokens,
                        "own_share": own / prompt_tokens,
                        "reused_share": other / prompt_tokens,
                        "other_model_hits": counts.get("other_model_hits", 0),
                        "moved_gb": counts.get("moved_bytes", 0) / 1e9,
                    }
                )
                advance(1)
    return rows + _beginnings(trace)


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print both tables."""
    beginnings = [row for row in rows if "model" in row]
    rows = [row for row in rows if "model" not in row]
    makespans = {(row["profile"], row["reuse"]): row["makespan_sim_s"] for row in rows}
    print_table(
        console,
        "Simulated: SmallVille with three fine-tuned models",
        [
            "profile", "reuse", "makespan\nsim_s", "against\nprefix", "own cache",
            "base's cache", "hits", "moved\nGB",
        ],
        (
            (
                row["profile"],
                row["reuse"] + ("*" if row["reuse"] == "free" else ""),
                f"{row['makespan_sim_s']:,.0f}",
                f"{makespans[row['profile'], 'prefix'] / row['makespan_sim_s']:.3f} x",
                f"{row['own_share']:.1%}",
                f"{row['reused_share']:.2%}",
                f"{row['other_model_hits']:,}",
                f"{row['moved_gb']:,.1f}",
            )
            for row in rows
        ),
        f"{rows[0]['calls']:,} calls out of order; base, plan, converse and reflect have one "
        "instance each. Caches: share of the prompt tokens. * a bound: prefills take no time.",
    )  # fmt: skip
    print_table(
        console,
        "Simulated: beginnings of prompts in that run",
        [
            "model",
            "prompt\ntokens",
            "as earlier\nof base",
            "as earlier\nof its own",
            "base's\nlonger by",
        ],
        (
            (
                row["model"],
                f"{row['prompt_tokens']:,}",
                f"{row['base_share']:.1%}",
                f"{row['own_share']:.1%}",
                f"{row['beyond_share']:.2%}",
            )
            for row in beginnings
        ),
        "Shares of the model's prompt tokens; earlier: in the order of steps and agents.",
    )


def _trace(steps: int | None, seed: int) -> Trace:
    """A run of SmallVille with these models, and with the texts of its calls."""
    scenario, models = make_scenario("smallville"), ModelChoice.parse(MODELS)
    author = Scripted(scenario.world.author, name=models.default or "")
    backend = VirtualInstances(author, SimulatedFleet.uniform("llama-3-8b/l4"))
    client = Client(backend, timeout_s=inf, models=models)
    run = Simulation(scenario.world, scenario.agents, client, seed=seed, keep_text=True)
    return run.run(steps or scenario.steps).trace


def _beginnings(trace: Trace) -> list[dict[str, Any]]:
    """How much of each model's prompts begins like earlier ones of the trace, in whole blocks."""
    calls = trace.calls
    assert calls.prompt is not None
    seen: dict[str, set[int]] = {model: set() for model in ("base", *VARIANTS)}
    """Model -> the beginnings of its prompts so far."""
    tokens = {model: [0, 0, 0, 0] for model in VARIANTS}
    for index, text in enumerate(calls.prompt):
        model, prompt_tokens = calls.models[calls.model[index]], int(calls.prompt_tokens[index])
        pieces = prefix_pieces(text or "", prompt_tokens)
        beginnings = list(accumulate((hashed for hashed, _ in pieces), lambda *two: hash(two)))
        if model in tokens:
            base, own = (
                PIECE_TOKENS * sum(1 for _ in takewhile(seen[of].__contains__, beginnings))
                for of in ("base", model)
            )
            found = prompt_tokens, base, own, max(0, base - own)
            tokens[model] = [sum(two) for two in zip(tokens[model], found, strict=True)]
        seen[model].update(beginnings)
    return [
        {
            "model": model,
            "prompt_tokens": prompt,
            "base_share": base / prompt if prompt else 0.0,
            "own_share": own / prompt if prompt else 0.0,
            "beyond_share": beyond / prompt if prompt else 0.0,
        }
        for model, (prompt, base, own, beyond) in tokens.items()
    ]


def _replayed(trace: Trace, profile: str, reuse: str, plans: str) -> ReplayResult:
    fleet = SimulatedFleet.parse([f"{model}={profile}" for model in ("base", *VARIANTS)])
    names = {
        "droidspeak": f"droidspeak:plans={plans},loss={LOSS}",
        "exact": f"exact:sender=base,receivers={'/'.join(VARIANTS)}",
        "free": "none",
    }
    if reuse == "free":
        fleet = SimulatedFleet(
            tuple(replace(each, profile=_free_prefill(each.profile)) for each in fleet.instances)
        )
    setting = Setting.of(trace.meta, fleet)
    return replay(trace, MODE, replace(setting, reuse=names.get(reuse, reuse)))


def _free_prefill(profile: Any) -> Any:
    """The profile without the cost of prefilled tokens."""
    free = copy(profile)
    free.g_ms = free.q_ms = free.c_ms = 0.0
    return free


def _profiles(quick: bool) -> Sequence[str]:
    return PROFILES[:1] if quick else PROFILES
