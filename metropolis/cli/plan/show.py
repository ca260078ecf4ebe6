"""`metropolis plan show`: the schedule of an application, and how good it is."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from metropolis.cli.plan.show_report import (
    as_json,
    new_console,
    print_application,
    print_gantt,
    print_methods,
    print_stages,
)
from metropolis.cli.terminal import printable
from metropolis.command_options import OutputFolder, on_command_line
from metropolis.plan.application_file import read_application
from metropolis.plan.comparison import compare
from metropolis.plan.plots import write_gantt
from metropolis.plan.schedule import read_schedules, write_schedule
from metropolis.plan.search.methods import METHODS
from metropolis.progress import progress_bar
from metropolis.runtime.replays.plots import prepare_figures
from metropolis.trace.parquet import check_target
from metropolis.types import MetropolisError


@click.command("show")
@click.argument("path", metavar="APP", type=click.Path(path_type=Path))
@click.option(
    "--method", "methods", type=click.Choice(METHODS), multiple=True,
    help="Search method whose schedule is shown. Repeat the option to compare it with further "
    "methods. [default: all; ours is shown]",
)  # fmt: skip
@click.option(
    "--draws", type=click.IntRange(0, 10_000), default=20, show_default=True,
    help="Simulated runs of each schedule, with other output lengths.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of output lengths."
)
@click.option("--out", type=click.Path(path_type=Path), help="A file for the schedule shown.")
@click.option("--figures", type=OutputFolder(), help="A folder for figures.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def command(
    path: Path, methods: tuple[str, ...], draws: int, seed: int,
    out: Path | None, figures: Path | None, is_json: bool,
) -> None:  # fmt: skip
    """Plan an application, and show the schedule and simulated runs of it.

    APP is the TOML file of an application. For a schedule that --out wrote, or the folder of a run,
    the stages in it are shown: those of a run below those that were planned.
    """
    if figures is not None:
        prepare_figures(figures)
    if path.is_dir() or path.suffix == ".json":
        given = {"methods": methods, "draws": draws, "seed": seed, "out": out}
        for name in on_command_line(given):
            option = "method" if name == "methods" else name
            raise MetropolisError(
                f"--{option} is for applications, and {path} has schedules; omit it"
            )
        _show_schedules(path, figures, is_json)
    else:
        _show_application(path, methods or METHODS, draws, seed, out, figures, is_json)


def _show_application(
    path: Path, methods: tuple[str, ...], draws: int, seed: int, out: Path | None,
    figures: Path | None, is_json: bool,
) -> None:  # fmt: skip
    loaded = read_application(path)
    if out is not None:
        check_target(out, *loaded.files)
    methods = tuple(dict.fromkeys(methods))
    with progress_bar(len(methods) + draws, "steps") as (advance, describe):
        workload, results = compare(loaded, methods, draws, seed, advance, describe)
    shown = results[0].schedule
    if out is not None:
        write_schedule(out, loaded.application.name, shown)
    panels = {f"{each.schedule.method}, estimate": each.schedule for each in results}
    if figures is not None:
        title = f"{loaded.application.name}: schedules, simulated"
        write_gantt(figures, panels, title, loaded.machine.gpus)
    if is_json:
        click.echo(json.dumps(as_json(loaded, workload, results), indent=2))
        return
    console = new_console()
    print_application(console, loaded, workload)
    console.print(f"The schedule of {shown.method}:\n")
    print_stages(console, shown, {name: each.node.model for name, each in workload.items()})
    title = next(iter(panels))
    print_gantt(console, {title: shown}, loaded.machine.gpus)
    print_methods(console, results, draws)


def _show_schedules(path: Path, figures: Path | None, is_json: bool) -> None:
    application, panels = read_schedules(path)
    if figures is not None:
        write_gantt(figures, panels, application, 0)
    if is_json:
        content = {"application": application, **msgspec.to_builtins(panels)}
        click.echo(json.dumps(content, indent=2))
        return
    console = new_console()
    for title, schedule in panels.items():
        console.print(f"{printable(application)}, {title}:\n")
        print_stages(console, schedule, {})
    print_gantt(console, panels, 0)
