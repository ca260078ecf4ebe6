"""`metropolis diff`: the differences between the histories of two runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from metropolis.cli.run_folders import run_folder
from metropolis.cli.run_options import options_of
from metropolis.cli.story import clock, filled, story_line
from metropolis.runtime.folder.comparison import Comparison, compare
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.types import Step
from metropolis.world.scenario import Scenario


@click.command(name="diff")
@click.argument("run")
@click.argument("other")
@click.option(
    "--trust",
    is_flag=True,
    help="Run the worlds that the folders name, even if another user wrote the folders.",
)
@click.option("--json", "as_json", is_flag=True, help="Print agents that differ, and since when.")
def command(run: str, other: str, trust: bool, as_json: bool) -> None:
    """Compare the histories of RUN and OTHER: where they diverge, which agents differ, and how.

    Sentences found only in RUN's story begin with -, those found only in OTHER's with +.
    """
    folders = run_folder(run), run_folder(other)
    found = compare(*folders)
    if as_json:
        click.echo(json.dumps(vars(found), indent=2, ensure_ascii=False))
        return
    scenarios = [options_of(folder, {}, trust=trust).scenario() for folder in folders]
    _print(found, scenarios[0])
    stories = [
        _story(scenario, folder, found.steps)
        for scenario, folder in zip(scenarios, folders, strict=True)
    ]
    world = scenarios[0].world
    for step, (one, another) in enumerate(zip(*stories, strict=True)):
        for mark, sentences, others in (("-", one, another), ("+", another, one)):
            for sentence in sentences:
                if sentence not in others:
                    click.echo(story_line(world, step, sentence, mark))


def _print(found: Comparison, scenario: Scenario) -> None:
    if found.first is None:
        click.echo(f"The {found.steps:,} common steps of the runs are equal.")
        return
    agents = {agent.name for agent in scenario.agents}
    differ = [name for name in found.since if name in agents]
    who = f"{len(differ)} of {len(agents)} agents" if differ else "no agent, only things"
    click.echo(
        filled(
            f"Equal up to step {found.first:,} ({clock(scenario.world, found.first)}); of the "
            f"{found.steps:,} common steps {found.differing:,} differ, and {who}. They "
            "diverge at:"
        )
    )
    for name in differ or found.since:
        click.echo(f"  {clock(scenario.world, found.since[name])}  {name}")


def _story(scenario: Scenario, folder: Path, steps: Step) -> Iterator[Sequence[str]]:
    return (scenario.story(record) for record in RunDirectory(folder).records(steps))
