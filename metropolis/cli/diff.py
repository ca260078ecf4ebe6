"""`metropolis diff`: the differences between the histories of two runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click

from metropolis.cli.run_folders import run_folder
from metropolis.cli.run_options import options_of
from metropolis.cli.story import clock, filled, story_line
from metropolis.cli.terminal import without_controls
from metropolis.runtime.folder.comparison import Comparison, compare
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.types import Step
from metropolis.world.base import World
from metropolis.world.scenario import Scenario, told

Parts = list[tuple[str, ...]]
"""Parts of a story, each a sentence and those that continue it."""
HEADING = (
    "Parts of the story that only one run has (a story leaves out part of what happens, so the "
    "other run may have them, too):"
)


@click.command(name="diff")
@click.argument("run")
@click.argument("other")
@click.option(
    "--trust",
    is_flag=True,
    help="Run the worlds that the folders name, even if another user wrote the folders.",
)
@click.option("--json", "as_json", is_flag=True, help="Print who differs, since when, and how.")
def command(run: str, other: str, trust: bool, as_json: bool) -> None:
    """Compare the histories of RUN and OTHER: where they diverge, which agents differ, and how.

    Parts of the story that only RUN has begin with -, those that only OTHER has with +.
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
    for number, line in enumerate(_told_once(scenarios[0].world, *stories)):
        if number == 0:
            click.echo(filled(HEADING))
        click.echo(line)


def _print(found: Comparison, scenario: Scenario) -> None:
    if found.first is None:
        click.echo(
            filled(
                f"The {found.steps:,} common steps of the runs are equal: all actions, changes and "
                "events."
            )
        )
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
        first = f"  {clock(scenario.world, found.since[name])}  "
        how = without_controls(f"{name}: {found.how[name]}")
        click.echo(filled(how, first, " " * (len(first) + 2)))


def _told_once(world: World, story: Iterator[Parts], other: Iterator[Parts]) -> Iterator[str]:
    """The lines of the parts that only one of two stories has."""
    for step, (one, another) in enumerate(zip(story, other, strict=True)):
        for mark, parts, others in (("-", one, set(another)), ("+", another, set(one))):
            for part in parts:
                if part not in others:
                    yield from (story_line(world, step, sentence, mark) for sentence in part)


def _story(scenario: Scenario, folder: Path, steps: Step) -> Iterator[Parts]:
    """The story by step."""
    for record in RunDirectory(folder).records(steps):
        parts: Parts = []
        for sentence in told(scenario, record):
            if parts and sentence.startswith(" "):
                parts[-1] += (sentence,)
            else:
                parts.append((sentence,))
        yield parts
