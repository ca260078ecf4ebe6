"""`metropolis plan run`: an application on real engines, by a schedule."""

from __future__ import annotations

import asyncio
import sys
from contextlib import closing
from math import isfinite
from pathlib import Path

import click
import msgspec
from rich import box
from rich.table import Table

from metropolis.cli.ctrl_c import ended_by_ctrl_c
from metropolis.cli.plan.show_report import new_console, print_gantt, print_stages
from metropolis.cli.terminal import printable, without_controls
from metropolis.command_options import Number, OutputFolder, on_command_line
from metropolis.open_files import raise_limit
from metropolis.plan.application_file import LoadedApplication, read_application
from metropolis.plan.machine import Machine
from metropolis.plan.running.communicator import Communicator
from metropolis.plan.running.engine import Sampling
from metropolis.plan.running.engine_command import KINDS, check_startable, engine_commands
from metropolis.plan.running.folder import ACTUAL, ANSWERS, RunFolder, RunRecord, has_run
from metropolis.plan.running.model_copy import EngineOptions
from metropolis.plan.running.runner import Reports, Runner
from metropolis.plan.running.schedule_check import check_schedule
from metropolis.plan.running.time_left import time_left_s
from metropolis.plan.schedule import Schedule, read_schedule
from metropolis.plan.search.methods import METHODS, OURS, search
from metropolis.plan.simulated_run import simulate_run
from metropolis.plan.timeline import Timeline
from metropolis.progress import progress_bar
from metropolis.tables import print_whole
from metropolis.types import MetropolisError

ESTIMATE = "planned, estimate"
SIMULATED = "simulated, with other output lengths"


@click.command("run")
@click.argument("path", metavar="APP", type=click.Path(path_type=Path))
@click.option("--out", type=OutputFolder(), help="Folder of the run and its answers.")
@click.option(
    "--schedule", "schedule_file", type=click.Path(path_type=Path), metavar="FILE",
    help="A schedule that `metropolis plan show --out` wrote. [default: search for a new one]",
)  # fmt: skip
@click.option(
    "--method", type=click.Choice(METHODS), default=OURS, show_default=True,
    help="Search method for a new schedule.",
)  # fmt: skip
@click.option(
    "--engine-command", metavar="COMMAND",
    help=f"How engines are started: {', '.join(KINDS)}, or a command with {{model}}, {{path}}, "
    "{port}, {tp} and {gpus}. Takes precedence over the tables [engines.MODEL].",
)  # fmt: skip
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of output lengths and answers.",
)
@click.option(
    "--temperature",
    type=Number(0),
    default=1.0,
    show_default=True,
    help="Sampling temperature of answers.",
)
@click.option(
    "--at-once", type=click.IntRange(1), default=256, show_default=True,
    help="Maximum requests in flight for each copy of a model.",
)  # fmt: skip
@click.option(
    "--drain-s", type=Number(0), default=5.0, show_default=True,
    help="When a copy of a model is stopped, wait this many seconds for its requests in flight; "
    "then send them to another copy.",
)  # fmt: skip
@click.option(
    "--wait-s", type=Number(1), default=1800.0, show_default=True,
    help="Maximum seconds from the start of an engine until it answers.",
)  # fmt: skip
@click.option(
    "--answer-s", type=Number(1), default=3600.0, show_default=True,
    help="Maximum seconds of one answer.",
)  # fmt: skip
@click.option(
    "--simulate", is_flag=True,
    help="Start no engines: simulate the run, with output lengths that the plan did not know.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    path: Path,
    out: Path | None,
    schedule_file: Path | None,
    method: str,
    engine_command: str | None,
    seed: int,
    temperature: float,
    at_once: int,
    drain_s: float,
    wait_s: float,
    answer_s: float,
    simulate: bool,
    as_json: bool,
) -> None:
    """Run the application APP: start and stop its models by a schedule, and collect the answers.

    Every answer is kept in the folder --out at once. However a run ends, the same command
    continues it, and asks for no answer twice.
    """
    loaded = read_application(path)

    def planned() -> Schedule:
        if schedule_file is not None:
            given = read_schedule(schedule_file, loaded.application.name)
            check_schedule(given, loaded.application, loaded.machine)  # before --out has it
            return given
        return search(Timeline(loaded.machine, loaded.workload(seed)), method)

    if simulate:
        _simulate(loaded, planned(), seed, as_json=as_json)
        return
    if out is None:
        raise click.UsageError("name the folder of the run with --out, or give --simulate")
    commands = engine_commands(
        loaded.application.models, loaded.engines, path.parent, engine_command
    )
    check_startable(commands.values(), loaded.machine.gpus)
    if not isfinite(temperature):
        raise click.BadParameter("it should be a finite number", param_hint="--temperature")
    sampling = Sampling(seed, temperature)
    options = EngineOptions(at_once, drain_s, wait_s, answer_s)
    Communicator(loaded.application, {})  # every part has a text: before --out has the application
    continues = has_run(out) and schedule_file is None
    schedule = None if continues else planned()
    with closing(RunFolder(out, loaded.application, sampling, schedule)) as folder:
        found = folder.record.planned.method
        if continues and method != found and on_command_line({"method": method}):
            raise MetropolisError(
                f"--method is for a new schedule, and the run in {out} follows one of the method "
                f"{found}; omit it, or give another one with --schedule"
            )
        runner = Runner(loaded.application, loaded.machine, commands, folder, sampling, options)
        _run(runner, folder.record)
    if as_json:
        _print_json(folder.record)
    else:
        _print_record(folder.record, loaded.machine, out)


def _run(runner: Runner, record: RunRecord) -> None:
    """Run to the end, with a progress bar; says what is kept if the run is stopped."""
    before = {name: node.answered for name, node in record.nodes.items()}
    total = sum(node.requests for node in record.nodes.values())
    began_s = record.elapsed_s

    def left_s() -> float:
        return time_left_s(record, record.elapsed_s - began_s, before)

    raise_limit()  # a connection for each request in flight
    try:
        with progress_bar(total, "requests", time_left_s=left_s) as (advance, _):
            advance(sum(before.values()))
            asyncio.run(_until_signalled(runner, Reports(_log, lambda: advance(1))))
    except BaseException:
        answered = sum(node.answered for node in record.nodes.values())
        _log(f"{answered:,} of {total:,} answers are kept; the same command continues the run")
        raise


async def _until_signalled(runner: Runner, reports: Reports) -> None:
    """Raises KeyboardInterrupt at Ctrl-C or SIGTERM; a second one ends the process."""
    loop, run = asyncio.get_running_loop(), asyncio.ensure_future(runner.run(reports))
    with ended_by_ctrl_c(lambda: loop.call_soon_threadsafe(run.cancel)):
        try:
            await run
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def _log(sentence: str) -> None:
    sys.stderr.write(f"{without_controls(sentence)}\n")  # above the progress bar


def _simulate(loaded: LoadedApplication, planned: Schedule, seed: int, *, as_json: bool) -> None:
    truth = Timeline(loaded.machine, loaded.workload(seed, 1))
    simulated = simulate_run(truth, planned)
    if as_json:
        _print_json({"planned": planned, "simulated": simulated})
        return
    models = {node.name: node.model for node in loaded.application.nodes}
    console = new_console()
    print_stages(console, simulated, models)
    print_gantt(console, {ESTIMATE: planned, SIMULATED: simulated}, loaded.machine.gpus)


def _print_json(content: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(content)))


def _print_record(record: RunRecord, machine: Machine, out: Path) -> None:
    console = new_console()
    print_stages(console, record.actual, {name: n.model for name, n in record.nodes.items()})
    print_gantt(console, {ESTIMATE: record.planned, ACTUAL: record.actual}, machine.gpus)
    table = Table("node", "model", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("requests", "prompt tokens", "output tokens", "sent again"):
        table.add_column(name, justify="right")
    for name, node in record.nodes.items():
        counts = node.answered, node.prompt_tokens, node.output_tokens, node.sent_again
        table.add_row(name, printable(node.model), *(f"{count:,}" for count in counts))
    print_whole(table, console)
    click.echo(f"\nanswers: {out / ANSWERS}")
