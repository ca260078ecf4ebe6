"""`metropolis bench ai-metropolis`: our simulated results beside the paper's evaluation.

AI Metropolis §4: full day (Fig. 4a), busy and quiet hour from 25 to 1000 agents (Fig. 5), with and
without step priority (Table 1); all with Llama-3-8B on L4. Calls are generated per seed, unless the
trace has recorded ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from metropolis.bench._spread import SPREAD, spread
from metropolis.command_options import SEEDS
from metropolis.progress import progress_bar
from metropolis.runtime.replays.replay import (
    ReplayResult,
    Setting,
    mine_dependencies,
    replay,
    speedup,
)
from metropolis.sim.fleet import SimulatedFleet
from metropolis.tables import print_whole
from metropolis.trace.generate.calls import generate_calls
from metropolis.trace.generate.largeville import tile
from metropolis.trace.parquet import read_trace
from metropolis.trace.schema import Trace

MODES = ("sequential", "lockstep", "conservative", "versioned", "oracle")
AGENTS = (25, 100, 500, 1000)
PRIORITY_AGENTS = 500
HOURS = {"busy": (12.0, 13.0), "quiet": (6.0, 7.0)}


@dataclass(frozen=True)
class Paper:
    """The paper's results for its rule (our `conservative`) in one setting; None: not given."""

    over_lockstep: float | None = None
    over_sequential: float | None = None
    share_of_oracle: float | None = None
    parallelism: float | None = None
    lockstep_parallelism: float | None = None


# (stretch, agents, instances) -> §4.2, §4.3
PAPER = {
    ("day", 25, 1): Paper(1.44, 2.38, 0.829),
    ("day", 25, 8): Paper(1.67, 3.25, 0.747, 3.46, 1.94),
    ("busy", 25, 8): Paper(1.88, 3.37, 0.531, 3.74, 1.89),
    ("busy", 100, 1): Paper(1.87, None, 0.909),
    ("busy", 500, 1): Paper(None, None, 1.0),
    ("busy", 500, 8): Paper(4.15, 19.5, None, 50.9),
    ("busy", 1000, 1): Paper(1.60),
    ("busy", 1000, 8): Paper(3.94, None, 0.97),
    ("quiet", 25, 8): Paper(1.28, None, None, 2.80, 2.25),
    ("quiet", 500, 8): Paper(2.79),
}
# Table 1: (mode, instances) -> completion time in s with and without priority; 500 agents, busy
PAPER_PRIORITY_S = {
    ("conservative", 4): (8611, 8942),
    ("conservative", 8): (6148, 7114),
    ("oracle", 4): (8392, 8484),
    ("oracle", 8): (5683, 5689),
}


@dataclass(frozen=True)
class Row:
    """One setting of Figs. 4a and 5: our simulated results and the paper's."""

    seed: int
    stretch: str
    agents: int
    instances: int
    calls: int
    makespan_sim_s: dict[str, float]
    speedup_over_lockstep: float
    versioned_over_lockstep: float
    speedup_over_sequential: float
    share_of_oracle: float
    versioned_share_of_oracle: float
    achieved_parallelism: float
    lockstep_parallelism: float
    paper: Paper


@dataclass(frozen=True)
class PriorityRow:
    """One cell of Table 1: our simulated results and the paper's."""

    seed: int
    mode: str
    instances: int
    with_priority_sim_s: float
    without_priority_sim_s: float
    paper_with_priority_s: float
    paper_without_priority_s: float


def _setting(trace: Trace, instances: int) -> Setting:
    return Setting.of(trace.meta, SimulatedFleet.uniform("llama-3-8b/l4", instances))


def with_calls(trace: Trace, seed: int) -> Trace:
    """`trace` with calls generated from `seed`; recorded calls are kept."""
    is_recorded = len(trace.calls) and trace.meta.calls_origin != "generated"
    return trace if is_recorded else generate_calls(trace, seed)


def _row(seed: int, stretch: str, trace: Trace, instances: int) -> Row:
    setting = _setting(trace, instances)
    graph = mine_dependencies(trace, setting)
    results = [replay(trace, mode, setting, graph) for mode in MODES]
    ours: dict[str, ReplayResult] = {result.mode: result for result in results}

    def over(mode: str, reference: str) -> float:
        value = speedup(results, ours[mode], reference)
        assert value is not None
        return value

    return Row(
        seed,
        stretch,
        trace.agents,
        instances,
        len(trace.calls),
        {mode: result.makespan_sim_s for mode, result in ours.items()},
        over("conservative", "lockstep"),
        over("versioned", "lockstep"),
        over("conservative", "sequential"),
        over("conservative", "oracle"),
        over("versioned", "oracle"),
        ours["conservative"].achieved_parallelism,
        ours["lockstep"].achieved_parallelism,
        PAPER.get((stretch, trace.agents, instances), Paper()),
    )


def scaling(trace: Trace, seed: int, agents: Sequence[int]) -> Iterable[Row]:
    """Yield the rows of Figs. 4a and 5; LargeVille is `trace` tiled with independent seeds."""
    for instances in (1, 8):
        yield _row(seed, "day", trace, instances)
    for stretch, hours in HOURS.items():
        town = tile([trace], max(agents), seed, hours=hours)
        for count in agents:
            for instances in (1, 8):
                yield _row(seed, stretch, town.first_agents(count), instances)


def priority(trace: Trace, seed: int, agents: int) -> Iterable[PriorityRow]:
    """Yield the cells of Table 1: the busy hour with and without step priority."""
    hour = tile([trace], agents, seed, hours=HOURS["busy"])
    graph = mine_dependencies(hour, _setting(hour, 1))
    for (mode, instances), paper in PAPER_PRIORITY_S.items():
        setting = _setting(hour, instances)
        by_step, first_come = (
            replay(hour, mode, replace(setting, policy=policy), graph).makespan_sim_s
            for policy in ("step", "fcfs")
        )
        yield PriorityRow(seed, mode, instances, by_step, first_come, *paper)


def _cell(values: Sequence[float], form: str, paper: float | None = None) -> str:
    ours = spread(values, form)
    return ours if paper is None else f"{ours} ({format(paper, form)})"


def _print(rows: Sequence[Row], priorities: Sequence[PriorityRow], seeds: Sequence[int]) -> None:
    console = Console()
    origin = f"seeds {', '.join(map(str, seeds))}"
    if len(seeds) > 1:
        origin += f": {SPREAD}"
    table = Table(
        "stretch", "agents", "instances", "calls", "conservative\nover lockstep",
        "versioned\nover lockstep", "conservative\nover sequential",
        "conservative,\nshare of oracle", "versioned,\nshare of oracle",
        "parallelism\nconservative", "parallelism\nlockstep",
        title="Ours, simulated on llama-3-8b/l4 (in brackets: the paper's, measured on real GPUs); "
        + origin,
        box=box.SIMPLE_HEAD,
    )  # fmt: skip
    for stretch, agents, instances in dict.fromkeys(
        (row.stretch, row.agents, row.instances) for row in rows
    ):
        same = [
            row
            for row in rows
            if (row.stretch, row.agents, row.instances) == (stretch, agents, instances)
        ]
        paper = same[0].paper
        table.add_row(
            stretch,
            str(agents),
            str(instances),
            _cell([row.calls for row in same], ",.0f"),
            _cell([row.speedup_over_lockstep for row in same], ".2f", paper.over_lockstep),
            _cell([row.versioned_over_lockstep for row in same], ".2f"),
            _cell([row.speedup_over_sequential for row in same], ".2f", paper.over_sequential),
            _cell([row.share_of_oracle for row in same], ".1%", paper.share_of_oracle),
            _cell([row.versioned_share_of_oracle for row in same], ".1%"),
            _cell([row.achieved_parallelism for row in same], ".2f", paper.parallelism),
            _cell([row.lockstep_parallelism for row in same], ".2f", paper.lockstep_parallelism),
        )
    print_whole(table, console)
    table = Table(
        "mode", "instances", "with priority\nsim_s", "without\nsim_s", "gain", "paper: with\ns",
        "paper: without\ns", "paper: gain",
        title=f"Step priority, busy hour (Table 1): ours simulated; {origin}",
        box=box.SIMPLE_HEAD,
    )  # fmt: skip
    for (mode, instances), paper_s in PAPER_PRIORITY_S.items():
        cells = [cell for cell in priorities if (cell.mode, cell.instances) == (mode, instances)]
        table.add_row(
            mode,
            str(instances),
            _cell([cell.with_priority_sim_s for cell in cells], ",.0f"),
            _cell([cell.without_priority_sim_s for cell in cells], ",.0f"),
            _cell(
                [cell.without_priority_sim_s / cell.with_priority_sim_s - 1 for cell in cells],
                ".1%",
            ),
            *(f"{value:,.0f}" for value in paper_s),
            f"{paper_s[1] / paper_s[0] - 1:.1%}",
        )
    print_whole(table, console)


@click.command(name="ai-metropolis")
@click.argument("trace", type=click.Path(path_type=Path))
@SEEDS
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(trace: Path, seeds: tuple[int, ...], as_json: bool) -> None:
    """Reproduce figures 4a and 5 and table 1 of AI Metropolis on TRACE, a town's day (25 agents).

    Each seed generates the calls of the town, if they are not recorded, and the other towns of
    LargeVille.
    """
    movement = read_trace(trace)
    total = len(seeds) * (2 + 2 * len(HOURS) * len(AGENTS) + len(PAPER_PRIORITY_S))
    rows: list[Row] = []
    priorities: list[PriorityRow] = []
    with progress_bar(total, "settings") as (advance, describe):
        for seed in seeds:
            base = with_calls(movement, seed)
            for row in scaling(base, seed, AGENTS):
                rows.append(row)
                describe(f"{row.stretch}, {row.agents} agents, seed {seed}")
                advance(1)
            for cell in priority(base, seed, PRIORITY_AGENTS):
                priorities.append(cell)
                describe(f"step priority, seed {seed}")
                advance(1)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "simulated": True,
                    "seeds": seeds,
                    "scaling": [asdict(row) for row in rows],
                    "priority": [asdict(row) for row in priorities],
                },
                indent=2,
            )
        )
    else:
        _print(rows, priorities, seeds)
