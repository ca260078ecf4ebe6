"""`metropolis show`: an agent's body and mind at a step of a run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from metropolis.cli.run_folders import run_folder
from metropolis.cli.run_options import options_of
from metropolis.cli.story import clock
from metropolis.cli.terminal import without_controls
from metropolis.command_options import Integer
from metropolis.maps.areas import Areas
from metropolis.names import check_name, cut
from metropolis.runtime.reruns.state_at import agent_at, state_at
from metropolis.types import MetropolisError, Step
from metropolis.workers.invocations import Invocation, Invocations
from metropolis.world.base import Agent
from metropolis.world.encoding import entity_to_json

SHOWN_LETTERS = 400


@click.command(name="show")
@click.argument("run")
@click.option("--agent", required=True, metavar="NAME", help="The agent to show.")
@click.option("--at", metavar="STEP", type=Integer(0), help="The step. [default: the run's end]")
@click.option("--trust", is_flag=True, help="Run the world that the folder of another user names.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object, in full.")
def command(run: str, agent: str, at: Step | None, trust: bool, as_json: bool) -> None:
    """Show the body and the mind of an agent of RUN as they are when STEP begins.

    RUN is only read. Steps since its last checkpoint before STEP are run again from its own
    answers; no model is called. The mind is printed as the world's tables, or as its saved fields.
    """
    folder = run_folder(run)
    scenario = options_of(folder, {}, trust=trust).scenario()
    check_name("agent", agent, [one.name for one in scenario.agents])
    found = state_at(folder, scenario.world, scenario.agents, at)
    body = next(entity for entity in found.entities if entity.name == agent)
    content = {"agent": agent, "step": found.step, "time": clock(scenario.world, found.step)}
    shown = {"body": msgspec.to_builtins(entity_to_json(body)), "mind": found.agents[agent]}
    if as_json:
        click.echo(json.dumps(content | shown, indent=2, ensure_ascii=False))
        return
    click.echo(f"{agent} at step {found.step:,} ({content['time']})")
    tables = asyncio.run(_tables(agent_at(found, scenario.agents, agent), found.step))
    state = shown["body"].pop("state")
    if scenario.world.map is not None:
        arena = Areas(scenario.world.map).arena_at(body.position)
        shown["body"]["in"] = "no arena of the map" if arena is None else arena.name
    _print_fields("body", shown["body"])
    if state:
        _print_fields("state of the body", state)
    if not tables:
        _print_fields("mind", shown["mind"])
    for title, rows in tables.items():
        _print_rows(title, rows)


async def _tables(agent: Agent, step: Step) -> dict[str, list[dict[str, str]]]:
    with Invocation(Invocations(), step, (agent.name,), agent.tables, agent):
        tables: Any = agent.tables()
        try:
            return {
                f"{title}": [{f"{of}": f"{cell}" for of, cell in row.items()} for row in rows]
                for title, rows in tables.items()
            }
        except (AttributeError, TypeError):
            raise MetropolisError(
                f"tables() returned {cut(tables)}; it should map titles to lists of rows, which "
                "map columns to texts or numbers"
            ) from None


def _print_rows(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    if not rows:
        Console().print(Text.assemble("  ", _text(title), ": none"))
        return
    table = _table(title)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    for column in columns:
        table.add_column(_text(column))
    for row in rows:
        table.add_row(*(_text(row.get(column, "")) for column in columns))
    Console().print(table)


def _print_fields(title: str, fields: Any) -> None:
    table = _table(title, show_header=False)
    for name, value in (fields if isinstance(fields, dict) else {title: fields}).items():
        table.add_row(
            _text(name),
            _text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)),
        )
    Console().print(table)


def _table(title: str, *, show_header: bool = True) -> Table:
    return Table(
        title=_text(title), title_justify="left", box=box.SIMPLE_HEAD, show_header=show_header
    )


def _text(text: str) -> Text:
    cut = f"{text[:SHOWN_LETTERS]} … (--json prints all)"
    return Text(without_controls(cut if len(text) > SHOWN_LETTERS else text))
