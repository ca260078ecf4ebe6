"""Section `absolute`: simulated times beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from metropolis._core import simulate
from metropolis.bench.droidspeak.tables import print_table
from metropolis.bench.samullm.paper import MACHINE, MIX_INSTRUCT, MIX_INSTRUCT_INPUTS, lengths
from metropolis.plan.machine import ExecutionPlan, Machine

KIND = "simulated"
SHARE_GPT_INPUTS = (161, 1024, 1.0)
"""Mean, maximum and sigma; assumed."""
SHARE_GPT_OUTPUTS = (130, 180, 250)
"""Mean output lengths that are tried: the paper does not give vicuna's."""
WITHOUT_OVERHEAD = Machine()


@dataclass(frozen=True)
class _Case:
    name: str
    model: str
    plan: ExecutionPlan
    requests: int
    paper_s: float
    is_fitted: bool
    outputs: int | None = None
    """Mean output length; None: MixInstruct's."""
    loads: bool = True


CASES = (
    _Case("1,000 requests, 1 GPU", "chatglm3-6b", ExecutionPlan(1, 1), 1000, 48, True),
    _Case("1,000 requests, 8 GPUs", "chatglm3-6b", ExecutionPlan(8, 1), 1000, 32, True),
    _Case("10,000 requests, 1 GPU", "chatglm3-6b", ExecutionPlan(1, 1), 10000, 356, True),
    _Case("10,000 requests, 8 GPUs", "chatglm3-6b", ExecutionPlan(8, 1), 10000, 67, True),
    *(
        _Case(
            f"{mean} tokens, {'with' if loads else 'no'} loading",
            "vicuna-13b", ExecutionPlan(1, 1), 1000, 128 if loads else 92, False, mean, loads,
        )
        for mean in SHARE_GPT_OUTPUTS
        for loads in (False, True)
    ),
)  # fmt: skip


def runs(quick: bool) -> int:  # noqa: ARG001 -- as all sections
    """Number of steps that `measure` reports."""
    return len(CASES)


def measure(
    quick: bool,  # noqa: ARG001 -- as all sections
    seed: int,
    advance: Callable[[int], None],
) -> list[dict[str, Any]]:
    """A row for each time in the paper."""
    rows = []
    for case in CASES:
        found = {
            name: _time_s(case, machine, seed)
            for name, machine in (("with", MACHINE), ("without", WITHOUT_OVERHEAD))
        }
        rows.append(
            {
                "model": case.model,
                "case": case.name,
                "paper_s": case.paper_s,
                "fitted": case.is_fitted,
                "simulated_s": found["with"],
                "error": found["with"] / case.paper_s - 1,
                "without_overhead_s": found["without"],
                "without_overhead_error": found["without"] / case.paper_s - 1,
            }
        )
        advance(1)
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the results."""
    print_table(
        console,
        "Simulated: the paper's times",
        ["model, case", "paper", "here", "error", "plain", "error", ""],
        [
            [
                f"{row['model']}, {row['case']}",
                f"{row['paper_s']:.0f} s",
                f"{row['simulated_s']:.1f} s",
                f"{100 * row['error']:+.1f} %",
                f"{row['without_overhead_s']:.1f} s",
                f"{100 * row['without_overhead_error']:+.1f} %",
                "fitted" if row["fitted"] else "",
            ]
            for row in rows
        ],
        "1,000 requests of ShareGPT for vicuna-13b. plain: without the engine's overhead. "
        "The overhead (4 ms an iteration, 0.07 ms a sequence) and the loading times of "
        "chatglm3-6b are fitted to its four times. vicuna's lengths are not in the paper. Its "
        "128 s are the paper's estimate (98 s, and 30 s of loading that are taken from there).",
    )


def _time_s(case: _Case, machine: Machine, seed: int) -> float:
    random = np.random.default_rng(seed)
    if case.outputs is None:
        inputs = random.choice(MIX_INSTRUCT_INPUTS, case.requests)
        outputs = MIX_INSTRUCT.draw(random, case.requests)
    else:
        inputs = random.choice(lengths(*SHARE_GPT_INPUTS, least=4), case.requests)
        outputs = random.choice(lengths(case.outputs, 1024, 0.9), case.requests)
    profile = machine.profile(case.model, case.plan.tp)
    arrival = np.zeros(case.requests)
    result = simulate(profile, arrival, inputs, outputs, instances=case.plan.dp)
    load_s = machine.load_s(case.model, case.plan) if case.loads else 0.0
    return float(result["last_token_sim_s"].max()) + load_s
