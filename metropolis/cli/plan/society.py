"""`metropolis plan society`: the GPUs for a society whose calls ask several models."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click
import msgspec
from rich import box
from rich.table import Table

from metropolis.cli.terminal import printable
from metropolis.cli.trace_parts import cut_hours
from metropolis.command_options import MODEL, NamedChoice
from metropolis.llm.model_choice import ModelChoice
from metropolis.names import count_in, cut
from metropolis.plan.machine import Machine
from metropolis.plan.society.allocation import GPUS_MAX
from metropolis.plan.society.search import REPLAYS_MAX, Candidate, SocietyPlan, plan_society
from metropolis.progress import progress_bar
from metropolis.runtime.replays.modes import OUT_OF_ORDER
from metropolis.sim.architecture import GPUS
from metropolis.tables import plain_console, print_whole
from metropolis.trace.parquet import read_trace
from metropolis.trace.schema import Trace

WIDTH = 110
NAMES = {"even": "even split", "fixed": "one allocation", "changing": "changing"}


class Phases(click.ParamType[int | None]):
    """`auto` (None) or a number of phases."""

    name = "auto|N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """Parse and check the range."""
        if value is None or value == "auto":
            return None
        count = count_in(str(value), 24)
        if count is None:
            self.fail(f"{cut(value)} is not auto or a whole number from 1 to 24", param, ctx)
        return count


@click.command("society")
@click.argument("path", metavar="TRACE", type=click.Path(path_type=Path))
@MODEL
@click.option(
    "--gpus", type=click.IntRange(1, GPUS_MAX), default=8, show_default=True, help="Number of GPUs."
)
@click.option("--gpu", type=NamedChoice(GPUS), default="a100-80g", show_default=True)
@click.option(
    "--phases", type=Phases(), default="auto", show_default=True,
    help="Number of phases of the day; auto: as many as its mix of models suggests.",
)  # fmt: skip
@click.option(
    "--mode", type=NamedChoice(("out_of_order", "lockstep")), default="out_of_order",
    show_default=True, help="The mode of the replays that judge plans.",
)  # fmt: skip
@click.option("--hours", default="all", show_default=True, help="A part of the day, like 6-18.")
@click.option(
    "--replays", type=click.IntRange(0, 10_000), default=REPLAYS_MAX, show_default=True,
    help="Maximum number of replays of samples in the search.",
)  # fmt: skip
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def command(
    path: Path, model: tuple[str, ...], gpus: int, gpu: str, phases: int | None, mode: str,
    hours: str, replays: int, is_json: bool,
) -> None:  # fmt: skip
    """Plan the GPUs for a society: copies and tensor parallelism of each model, over the day.

    TRACE is a file or a run's folder. --model names the models of its calls, by their names in
    metropolis/sim/architectures.toml. All times are simulated, by profiles that are estimates.
    """
    trace = cut_hours(ModelChoice.parse(model).applied_to(read_trace(path)), hours)
    with progress_bar(replays, "replays") as (advance, describe):
        describe("planning")
        plan = plan_society(
            trace,
            Machine(gpus, gpu),
            mode=OUT_OF_ORDER.get(mode, mode),
            phases=phases,
            replays_max=replays,
            advance=advance,
        )
    if is_json:
        click.echo(json.dumps(_as_json(trace, plan), indent=2))
        return
    _print(trace, plan, mode)
    fixed = plan.fixed.phases[0].allocation
    instances = [
        f"{name}={name}/{gpu}-tp{each.tp}:{each.dp}"
        for name, each in zip(plan.models.names, fixed, strict=True)
        if each is not None
    ]
    words = ["metropolis", "replay", f"{path}", "--modes", mode]
    words += [] if hours == "all" else ["--hours", hours]
    words += [word for each in model for word in ("--model", each)]
    words += [word for each in instances for word in ("--instance", each)]
    click.echo(printable(f"To replay the one allocation: {shlex.join(words)}"))


def _as_json(trace: Trace, plan: SocietyPlan) -> dict[str, Any]:
    return {
        "simulated": True,
        "mode": plan.mode,
        "models": plan.models.names,
        "best": plan.best.name,
        "replays": plan.replays,
        "search_wall_s": plan.search_wall_s,
        "phases": [{"step": step, "hour": trace.hour_of_step(step)} for step in plan.firsts],
        "plans": [
            {
                "name": each.name,
                "makespan_sim_s": each.makespan_sim_s,
                "gpus_busy": each.gpus_busy,
                "phases": [
                    {
                        "step": phase.step,
                        "models": {
                            name: msgspec.to_builtins(chosen)
                            for name, chosen in zip(
                                plan.models.names, phase.allocation, strict=True
                            )
                            if chosen is not None
                        },
                    }
                    for phase in each.phases
                ],
            }
            for each in plan.candidates
        ],
    }


def _print(trace: Trace, plan: SocietyPlan, mode: str) -> None:
    console = plain_console(highlight=False)
    console.width = max(console.width, WIDTH)
    machine = plan.models.machine
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, title_justify="left",
        title=f"Simulated: {trace.agents} agents, {len(trace.calls):,} calls, {mode}, on "
        f"{machine.gpus} x {machine.gpu}",
    )  # fmt: skip
    table.add_column("plan", no_wrap=True)
    for heading in ("from", "makespan\nsim_s", "against\neven split", "GPUs\nbusy"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("models")
    for each in plan.candidates:
        for number, phase in enumerate(each.phases):
            first = (
                f"{each.makespan_sim_s:,.0f}",
                f"{plan.even.makespan_sim_s / each.makespan_sim_s:.2f} x",
                f"{each.gpus_busy:.0%}",
            )
            table.add_row(
                NAMES[each.name] if not number else "",
                _clock(trace, phase.step),
                *(first if not number else ("", "", "")),
                printable(plan.models.text(phase.allocation)),
            )
    print_whole(table, console)
    starts = ", ".join(_clock(trace, step) for step in plan.firsts)
    console.print(
        f"\nPhases of the day by its mix of models begin at {starts}. {_conclusion(plan)} "
        f"{plan.replays} replays, {plan.search_wall_s:,.0f} s. The models of the first phase are "
        "loaded when the day begins; profiles and loading times are estimates."
    )


def _conclusion(plan: SocietyPlan) -> str:
    best: Candidate = plan.best
    if plan.changing is None:
        return "No change over the day is expected to pay for its loading."
    return f"The fastest is: {NAMES[best.name]}."


def _clock(trace: Trace, step: int) -> str:
    minutes = round(trace.hour_of_step(step) * 60)
    return f"{minutes // 60}:{minutes % 60:02}"
