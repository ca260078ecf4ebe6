"""`metropolis bench optimistic`: what running ahead gains and wastes, simulated.

LargeVille is the trace tiled with independent seeds, as in `metropolis bench ai-metropolis`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from metropolis.bench.ai_metropolis import HOURS
from metropolis.progress import progress_bar
from metropolis.rules.metrics import METRICS
from metropolis.runtime.replays.modes import AUTO_RISK, Risk
from metropolis.runtime.replays.replay import Setting, mine_dependencies, replay, waste
from metropolis.sim.fleet import SimulatedFleet
from metropolis.tables import print_whole
from metropolis.trace.generate.largeville import tile
from metropolis.trace.parquet import read_trace
from metropolis.trace.schema import Trace
from metropolis.trace.validate import place_in, validate_moves
from metropolis.types import MetropolisError

BASELINES = ("lockstep", "conservative", "versioned", "oracle")
INSTANCES = (1, 2, 4, 8)
LONGEST = "longest"
"""The stretch that is the whole trace."""
AUTO = {"auto": AUTO_RISK}
RISKS = {f"{most:g}": Risk(most) for most in (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)} | AUTO


@dataclass(frozen=True)
class Row:
    """One setting: makespan of the modes without speculation, then by risk."""

    stretch: str
    agents: int
    instances: int
    calls: int
    makespan_sim_s: dict[str, float]
    optimistic_sim_s: dict[str, float]
    waste: dict[str, float]
    """Risk -> share of the sent calls that were wasted."""


def _row(
    stretch: str, trace: Trace, instances: int, risks: Mapping[str, Risk], metric: str | None
) -> Row:
    fleet = SimulatedFleet.uniform("llama-3-8b/l4", instances)
    setting = Setting.of(trace.meta, fleet, metric=metric)
    graph = mine_dependencies(trace, setting)
    plain = {mode: replay(trace, mode, setting, graph).makespan_sim_s for mode in BASELINES}
    by_risk = {
        name: replay(trace, "optimistic", replace(setting, speculation=risk))
        for name, risk in risks.items()
    }
    return Row(
        stretch,
        trace.agents,
        instances,
        len(trace.calls),
        plain,
        {name: result.makespan_sim_s for name, result in by_risk.items()},
        {name: waste(result) for name, result in by_risk.items()},
    )


def measure(
    trace: Trace,
    seed: int,
    agents: int,
    risks: Mapping[str, Risk],
    stretches: Sequence[str] = tuple(HOURS),
    metric: str | None = None,
) -> Iterator[Row]:
    """Yield a row for each stretch and number of instances; `metric`: None is the trace's."""
    for stretch in stretches:
        town = tile([trace], agents, seed, hours=HOURS.get(stretch))
        for instances in INSTANCES:
            yield _row(stretch, town, instances, risks, metric)


def _print(rows: Sequence[Row], risks: Iterable[str]) -> None:
    table = Table(
        "stretch", "agents", "instances", "oracle\nsim_s", *BASELINES[:-1],
        *(f"risk {risk}\n(waste)" for risk in risks),
        title="Makespan, simulated on llama-3-8b/l4: share of the oracle",
        box=box.SIMPLE_HEAD,
    )  # fmt: skip
    for row in rows:
        oracle = row.makespan_sim_s["oracle"]
        table.add_row(
            row.stretch,
            str(row.agents),
            str(row.instances),
            f"{oracle:,.0f}",
            *(f"{oracle / row.makespan_sim_s[mode]:.1%}" for mode in BASELINES[:-1]),
            *(f"{oracle / row.optimistic_sim_s[r]:.1%} ({row.waste[r]:.1%})" for r in risks),
        )
    print_whole(table, Console())


@click.command(name="optimistic")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--agents",
    type=click.IntRange(1, 100_000),
    default=25,
    show_default=True,
    help="Number of agents; more than the trace has are copies with other seeds.",
)
@click.option(
    "--curve", is_flag=True, help=f"Also measure the fixed risks {', '.join(list(RISKS)[:-1])}."
)
@click.option(
    "--longest", is_flag=True, help="Measure the whole trace in place of the busy and quiet hour."
)
@click.option(
    "--metric",
    type=click.Choice(list(METRICS)),
    help="How distance is measured. [default: the trace's]",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the LargeVille copies.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(
    trace: Path,
    agents: int,
    curve: bool,
    longest: bool,
    metric: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Measure the mode optimistic on TRACE, a town's day: busy and quiet hour.

    The bench keeps recorded calls. It replaces all others, such as those of the offline author, by
    calls that it generates from the seed.
    """
    base = read_trace(trace)
    if not len(base.calls):
        raise MetropolisError(f"{trace}: holds no calls; `metropolis trace generate` adds some")
    meta = base.meta if metric is None else replace(base.meta, metric=metric)
    validate_moves(base.positions, meta, place_in(trace, base.meta.agents))
    risks = RISKS if curve else AUTO
    stretches = (LONGEST,) if longest else tuple(HOURS)
    rows: list[Row] = []
    with progress_bar(len(stretches) * len(INSTANCES), "settings") as (advance, describe):
        for row in measure(base, seed, agents, risks, stretches, metric):
            rows.append(row)
            describe(f"{row.stretch}, {row.instances} instances")
            advance(1)
    if as_json:
        shown = [asdict(row) for row in rows]
        click.echo(json.dumps({"simulated": True, "rows": shown}, indent=2))
    else:
        _print(rows, risks)
