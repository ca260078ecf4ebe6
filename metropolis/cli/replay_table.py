"""The results of `metropolis replay`, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from metropolis.cli.terminal import printable
from metropolis.names import counted
from metropolis.runtime.replays.modes import AUTO_RISK, mode_of
from metropolis.runtime.replays.replay import ReplayResult, Setting, speedup, waste
from metropolis.tables import numbers_table, or_dash, plain_console, print_whole
from metropolis.trace.mining import InteractionGraph, critical_path
from metropolis.trace.schema import Trace

TABLE_WIDTH = 80


def as_row(
    setting: Setting, results: Sequence[ReplayResult], result: ReplayResult
) -> dict[str, Any]:
    """Return one object of the `--json` list."""
    arrays = {k for k, v in vars(result).items() if isinstance(v, np.ndarray)}
    row = {k: v for k, v in vars(result).items() if k not in arrays}
    return row | {
        "speedup_over_lockstep": speedup(results, result, "lockstep"),
        "speedup_over_sequential": speedup(results, result, "sequential"),
        "share_of_oracle": speedup(results, result, "oracle"),
        "share_of_oracle_values": speedup(results, result, "oracle_values"),
        "waste": waste(result),
        "perception_radius": setting.perception_radius,
        "max_velocity": setting.max_velocity,
        "speculation": speculation_of(setting) if mode_of(result.mode).is_optimistic else None,
        "simulated": True,
    }


def print_table(
    trace: Trace, graph: InteractionGraph, setting: Setting, results: Sequence[ReplayResult]
) -> None:
    """Print the results of one window, below a description of its trace and settings."""
    tokens = trace.calls.prompt_tokens + trace.calls.output_tokens
    longest = critical_path(trace, graph, tokens.astype(np.float64))
    meta = trace.meta
    console = plain_console(highlight=False)
    console.width = max(console.width, TABLE_WIDTH)
    console.print(
        f"{printable(meta.name) or 'a trace without a name'}, hours {results[0].hours}: "
        f"{counted(trace.agents, 'agent')}, {counted(trace.steps, 'step')}, "
        f"{counted(len(trace.calls), 'call')} "
        f"(movement {meta.movement_origin}, calls {meta.calls_origin}); "
        f"{graph.dependencies_per_agent_step:.2f} true dependencies per agent-step incl. itself; "
        f"critical path {longest.weight:,.0f} tokens in {counted(len(longest.calls), 'call')}."
    )
    for fleet, policy in dict.fromkeys((r.fleet, r.policy) for r in results):
        chosen = [r for r in results if (r.fleet, r.policy) == (fleet, policy)]
        console.print(
            f"\nSimulated on {fleet}, policy {policy}{_plugins(setting)}; "
            f"{setting.metric.name} metric, radius {setting.perception_radius:g}, "
            f"velocity {setting.max_velocity:g}{_risk(setting, chosen)}."
        )
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, pad_edge=False)
        table.add_column("mode", no_wrap=True)
        for heading in (
            "makespan\nsim_s", "over\nlockstep", "over se-\nquential", "share of\noracle",
            "waste", "paral-\nlelism", "utili-\nsation", "control\nµs/step",
        ):  # fmt: skip
            table.add_column(heading, justify="right", no_wrap=True)
        for result in chosen:
            table.add_row(*_cells(results, result))
        print_whole(table, console)
        _print_queueing(console, chosen)
        _print_reuse(console, chosen, int(trace.calls.prompt_tokens.sum()))
    if any(mode_of(result.mode).is_bound for result in results):
        console.print("* a bound, not an execution")
    console.print("µs/step: controller time per agent-step, real")
    if any(result.mode == "oracle_values" for result in results):
        console.print("second share: of oracle_values")


def _plugins(setting: Setting) -> str:
    """The settings of instances beside the policy."""
    told = []
    if setting.dispatcher is not None:
        told.append(f"dispatcher {setting.dispatcher}")
    if setting.prefix_reuse:
        told.append("prefix reuse")
    if setting.reuse is not None:
        told.append(f"reuse {setting.reuse}")
    return "".join(f", {each}" for each in told)


def _risk(setting: Setting, results: Sequence[ReplayResult]) -> str:
    """The risk of the mode optimistic, if it was replayed and the risk is not the default."""
    is_told = setting.speculation != AUTO_RISK and any(
        mode_of(result.mode).is_optimistic for result in results
    )
    return f", speculation {speculation_of(setting)}" if is_told else ""


def speculation_of(setting: Setting) -> str:
    """`off`, `auto` or a number, as in `--speculation`."""
    risk = setting.speculation
    if risk is None:
        return "off"
    return "auto" if risk == AUTO_RISK else f"{risk.most:g}"


def _print_queueing(console: Console, results: Sequence[ReplayResult]) -> None:
    """Print the queueing of calls in the modes that execute them."""
    table = numbers_table("queueing of calls, sim_s", "mean", "p50", "p99")
    for result in results:
        values = result.queueing_mean_sim_s, result.queueing_p50_sim_s, result.queueing_p99_sim_s
        if result.queueing_mean_sim_s is not None:
            table.add_row(result.mode, *(f"{value:,.2f}" for value in values))
    if table.row_count:
        print_whole(table, console)


def _print_reuse(console: Console, results: Sequence[ReplayResult], prompt_tokens: int) -> None:
    """Print what prefills started from, in the modes in which a plug-in chose it."""
    headings = ("own\ncache", "other\ncaches", "from other\nmodels", "moved\nGB")
    table = numbers_table(f"reuse; {prompt_tokens:,} prompt tokens", *headings)
    for result in results:
        if (found := result.reuse) is not None:
            tokens = found["own_tokens"], found["reused_tokens"], found["other_model_hits"]
            moved = f"{found['moved_bytes'] / 1e9:,.2f}"
            table.add_row(result.mode, *(f"{count:,}" for count in tokens), moved)
    if table.row_count:
        print_whole(table, console)


def _cells(results: Sequence[ReplayResult], result: ReplayResult) -> list[str]:
    parallelism = result.achieved_parallelism
    shares = [speedup(results, result, "oracle")]
    by_values = speedup(results, result, "oracle_values")
    if by_values is not None:
        shares.append(by_values)
    return [
        result.mode + ("*" if mode_of(result.mode).is_bound else ""),
        or_dash(result.makespan_sim_s, ",.1f" if result.makespan_sim_s < 10_000 else ",.0f"),
        or_dash(speedup(results, result, "lockstep"), ".2f"),
        or_dash(speedup(results, result, "sequential"), ".2f"),
        " ".join(or_dash(share, ".0%") for share in shares),
        or_dash(waste(result) if mode_of(result.mode).is_optimistic else None, ".1%"),
        or_dash(parallelism, ".2f" if parallelism < 100 else ",.0f"),
        or_dash(result.utilisation, ".0%"),
        or_dash(result.controller_us_per_agent_step, ".2f"),
    ]
