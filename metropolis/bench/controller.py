"""`metropolis bench controller`: speed of the native controller, from 25 agents to a million."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import click

import metropolis._core as _core
from metropolis.names import count_in, cut
from metropolis.rules.metrics import PLANE_METRICS
from metropolis.rules.native import core_metric
from metropolis.rules.rules import rule_named

OPTIMISTIC = "optimistic"
AGENTS_MAX = 10_000_000
OPTIMISTIC_STEPS_MAX = 10_000
"""The core's limits of agents, and of steps with `optimistic`."""
PERCEPTION_RADIUS = 4.0
MAX_VELOCITY = 1.0
PROTOTYPE = {25: 3.5e6, 1_000: 1.38e6, 10_000: 1.0e6, 100_000: 0.72e6, 1_000_000: 0.36e6}
"""Agent-steps per CPU-second of the prototype that set the targets."""


@dataclass(frozen=True, kw_only=True)
class ControllerBench:
    """One size: walkers at SmallVille's density (25 agents on 140 x 100 tiles), r = 4, v = 1.

    `optimistic` lacks the figures that are None.
    """

    agents: int
    steps: int
    rule: str
    metric: str
    agent_steps_per_cpu_s: float
    commit_p50_us: float | None = None
    commit_p99_us: float | None = None
    commit_max_us: float | None = None
    """Includes preemption by other processes during a commit."""
    bytes_fixed: float | None = None
    """Heap of a controller without agents."""
    bytes_per_agent: float
    """Heap that each agent adds; `optimistic`: in the middle of the run, with all records."""
    skew_max_steps: int
    construct_cpu_s: float | None = None


def measure(agents: int, steps: int, rule: str, metric: str, seed: int) -> ControllerBench:
    """Measure one size; small sizes run several times.

    The CPU time of the walkers and of their clock is excluded. `optimistic`: a speculation in front
    of the controller, whose walkers run up to 4 steps ahead; commits are not timed one by one.
    """
    if rule == OPTIMISTIC:
        run = _core.bench_speculation(agents, steps, seed)
        return ControllerBench(
            agents=agents,
            steps=steps,
            rule=rule,
            metric=metric,
            agent_steps_per_cpu_s=run["agent_steps"] / run["cpu_s"],
            bytes_per_agent=run["bytes_per_agent"],
            skew_max_steps=int(run["skew_max"]),
        )
    radii = rule_named(rule, PERCEPTION_RADIUS, MAX_VELOCITY)
    twin = core_metric(PLANE_METRICS[metric])
    result = _core.bench_controller(
        radii.couple_radius, radii.block_radius, twin, agents, steps, seed
    )
    return ControllerBench(
        agents=agents,
        steps=steps,
        rule=rule,
        metric=metric,
        agent_steps_per_cpu_s=result["agent_steps"] / result["cpu_s"],
        commit_p50_us=result["commit_p50_us"],
        commit_p99_us=result["commit_p99_us"],
        commit_max_us=result["commit_max_us"],
        bytes_fixed=result["bytes_fixed"],
        bytes_per_agent=result["bytes_per_agent"],
        skew_max_steps=result["skew_max"],
        construct_cpu_s=result["construct_cpu_s"],
    )


def _sizes(_context: click.Context, _parameter: click.Parameter, value: str) -> list[int]:
    sizes = [count_in(size.strip(), AGENTS_MAX) for size in value.split(",")]
    found = [size for size in sizes if size is not None]
    if len(found) < len(sizes):
        raise click.BadParameter(
            f"{cut(value)} is not a list of numbers from 1 to {AGENTS_MAX:,} such as 25,1000"
        )
    return found


@click.command("controller")
@click.option(
    "--agents", default="25,1000,10000,100000", show_default=True, callback=_sizes, help="Sizes."
)
@click.option("--steps", default=200, show_default=True, type=click.IntRange(1, 2**31 - 1))
@click.option(
    "--rule",
    default="conservative",
    show_default=True,
    type=click.Choice(["lockstep", "conservative", "versioned", "no_dependency", OPTIMISTIC]),
)
@click.option(
    "--metric", default="chebyshev", show_default=True, type=click.Choice(list(PLANE_METRICS))
)
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**63 - 1))
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def command(
    agents: list[int], steps: int, rule: str, metric: str, seed: int, as_json: bool
) -> None:
    """Measure the native controller: walkers, lognormal service times, unlimited servers.

    Only CPU time inside the controller's calls counts.
    """
    if rule == OPTIMISTIC and metric != "chebyshev":
        raise click.UsageError(f"--rule {OPTIMISTIC} is measured with --metric chebyshev only")
    if rule == OPTIMISTIC and steps > OPTIMISTIC_STEPS_MAX:
        raise click.UsageError(
            f"--steps {steps} is too large for --rule {OPTIMISTIC}; it should be at most "
            f"{OPTIMISTIC_STEPS_MAX:,}"
        )
    if as_json:
        rows = [measure(size, steps, rule, metric, seed) for size in agents]
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    click.echo("   agents  M agent-steps/CPU-s  prototype  commit p50/p99 µs  bytes/agent  skew")
    for size in agents:  # a million agents take minutes: print every row at once
        row = measure(size, steps, rule, metric, seed)
        known = row.agents in PROTOTYPE and rule != OPTIMISTIC
        prototype = f"{PROTOTYPE[row.agents] / 1e6:.2f}" if known else "–"
        commits = "–" if row.commit_p50_us is None else f"{row.commit_p50_us:.2f}"
        commits += "" if row.commit_p99_us is None else f"/{row.commit_p99_us:.2f}"
        click.echo(
            f"{row.agents:>9,}  {row.agent_steps_per_cpu_s / 1e6:>19.2f}  {prototype:>9}  "
            f"{commits:>17}  "
            f"{row.bytes_per_agent:>11.1f}  {row.skew_max_steps:>4}"
        )
