"""What `metropolis plan show` prints, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from metropolis.cli.terminal import printable
from metropolis.plan.application_file import LoadedApplication
from metropolis.plan.comparison import MethodResult
from metropolis.plan.gantt import gantt_text, legend, nodes_of
from metropolis.plan.placement import shown_gpus
from metropolis.plan.schedule import Schedule, ScheduleStage
from metropolis.plan.workload import Workload
from metropolis.tables import plain_console, print_whole

WIDTH = 100
"""The least width of tables, in columns; where the output is no terminal, also of charts."""


def new_console() -> Console:
    """A console for tables and charts."""
    console = plain_console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    return console


def print_application(console: Console, loaded: LoadedApplication, workload: Workload) -> None:
    """The graph: nodes with their inputs, requests and mean lengths."""
    machine = loaded.machine
    console.print(
        f"{printable(loaded.application.name)} on {machine.gpus} x {machine.gpu}. All times but "
        "those of the search are simulated.\n"
    )
    table = _table("node", "model", "inputs", "/requests", "/prompt\ntokens", "/output\ntokens")
    for name, each in workload.items():
        node = each.node
        join = " + " if node.join == "concatenate" else ", "
        inputs = join.join(node.inputs) + (" (chain)" if node.chain else "")
        means = (f"{each.prompt_tokens.mean():,.0f}", f"{each.output_tokens.mean():,.0f}")
        table.add_row(name, printable(node.model), inputs, f"{len(each):,}", *means)
    print_whole(table, console)
    console.print("tokens: means of the draw that is planned for\n")


def print_stages(console: Console, schedule: Schedule, models: Mapping[str, str]) -> None:
    """The stages of a schedule: what is loaded, what ends, and how many nodes continue.

    `models`: the model of each node, where it is known.
    """
    table = _table("/from s", "/to s", "node", "model", "dp x tp", "GPUs", "/loads s", "ends")
    for stage in schedule.stages:
        rows = [
            _stage_row(name, printable(models.get(name, "")), stage)
            for name, node in stage.nodes.items()
            if node.loads or _end(name, stage)
        ]
        if continuing := len(stage.nodes) - len(rows):
            verb = "continues" if continuing == 1 else "continue"
            rows.append((f"{continuing} {verb}", *[""] * 5))
        for number, row in enumerate(rows):
            times = [f"{stage.begins_s:,.1f}", f"{stage.ends_s:,.1f}"] if not number else ["", ""]
            table.add_row(*times, *row)
    print_whole(table, console)
    console.print()


def _stage_row(name: str, model: str, stage: ScheduleStage) -> tuple[str, ...]:
    node = stage.nodes[name]
    loads_s = f"{node.loaded_s - stage.begins_s:.1f}" if node.loads else ""
    plan = f"{node.dp} x {node.tp}"
    return name, model, plan, shown_gpus(node.gpus), loads_s, _end(name, stage)


def _end(name: str, stage: ScheduleStage) -> str:
    """How a node ends the stage."""
    if stage.nodes[name].finishes:
        return "finished"
    boundary = stage.boundary
    return f"{boundary.open_requests:,} open" if boundary and boundary.node == name else ""


def print_gantt(console: Console, panels: Mapping[str, Schedule], gpus: int) -> None:
    """Charts of schedules with the same time axis."""
    nodes = nodes_of(tuple(panels.values()))
    ends_s = max(schedule.ends_s for schedule in panels.values())
    for title, schedule in panels.items():
        console.print(f"{printable(title)}: {schedule.ends_s:,.1f} s")
        console.print(gantt_text(schedule, nodes, console.width, gpus, ends_s))
    console.print(legend(nodes, console.width))
    console.print()


def print_methods(console: Console, results: Sequence[MethodResult], draws: int) -> None:
    """The methods by their simulated runs."""
    best_s = min(result.mean_s for result in results)
    headings = ("/stages", "/search\ns", "/estimate\ns", "/simulated\nmean s", "/p10\ns", "/p90\ns")
    table = _table("method", *headings, "/times\nbest")
    for result in results:
        row = [result.mean_s, result.quantile_s(0.1), result.quantile_s(0.9)]
        table.add_row(
            result.schedule.method,
            f"{len(result.schedule.stages)}",
            f"{result.search_s:.2f}",
            f"{result.schedule.ends_s:,.1f}",
            *([f"{seconds:,.1f}" for seconds in row] if draws else [""] * 3),
            f"{result.mean_s / best_s:.2f}",
        )
    print_whole(table, console)
    console.print(
        f"estimate: with the lengths planned for; simulated: {draws} runs by the schedule, with "
        "lengths drawn again; search: measured"
    )


def as_json(
    loaded: LoadedApplication, workload: Workload, results: Sequence[MethodResult]
) -> dict[str, Any]:
    """The content of the report as a JSON object."""
    return {
        "application": loaded.application.name,
        "gpus": loaded.machine.gpus,
        "gpu": loaded.machine.gpu,
        "nodes": [
            {
                "node": name,
                "model": each.node.model,
                "inputs": each.node.inputs,
                "requests": len(each),
                "prompt_tokens_mean": float(each.prompt_tokens.mean()),
                "output_tokens_mean": float(each.output_tokens.mean()),
            }
            for name, each in workload.items()
        ],
        "methods": [
            {
                "method": result.schedule.method,
                "search_s": result.search_s,
                "estimate_s": result.schedule.ends_s,
                "simulated_mean_s": result.mean_s if result.runs_s else None,
                "simulated_p10_s": result.quantile_s(0.1) if result.runs_s else None,
                "simulated_p90_s": result.quantile_s(0.9) if result.runs_s else None,
                "simulated_runs": len(result.runs_s),
                "schedule": msgspec.to_builtins(result.schedule),
            }
            for result in results
        ],
    }


def _table(*headings: str) -> Table:
    """A table; columns whose heading begins with / are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        if heading.startswith("/"):
            table.add_column(heading[1:], justify="right", no_wrap=True)
        else:
            table.add_column(heading, overflow="fold")
    return table
