"""`metropolis ask`: interview an agent at a step of a run."""

from __future__ import annotations

import asyncio
import json

import click

from metropolis.cli.run_folders import run_folder
from metropolis.cli.run_options import options_of
from metropolis.cli.story import clock, filled
from metropolis.cli.terminal import without_controls
from metropolis.command_options import MODEL, Integer, on_command_line
from metropolis.llm.client import Client
from metropolis.names import check_name, check_text
from metropolis.runtime.folder.checkpoint import Checkpoint
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.reruns.interview import interview
from metropolis.runtime.reruns.state_at import state_at
from metropolis.types import MetropolisError, Step
from metropolis.world.base import Agent
from metropolis.world.scenario import Scenario


@click.command(name="ask")
@click.argument("run")
@click.argument("question")
@click.option("--agent", required=True, metavar="NAME", help="The agent to ask.")
@click.option("--at", metavar="STEP", type=Integer(0), help="The step. [default: the run's end]")
@click.option(
    "--llm",
    metavar="SPEC",
    default="scripted",
    show_default=True,
    help="The model that answers, as in `metropolis run`; scripted: the world's offline author.",
)
@MODEL
@click.option("--trust", is_flag=True, help="Run the world that the folder of another user names.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(
    run: str,
    question: str,
    agent: str,
    at: Step | None,
    llm: str,
    model: tuple[str, ...],
    trust: bool,
    as_json: bool,
) -> None:
    """Ask an agent of RUN a QUESTION, as the agent is when STEP begins.

    A copy of the agent answers: RUN is only read, and the agent does not remember the interview.
    Steps since its last checkpoint before STEP are run again from its own answers.
    """
    if not question.strip():
        raise MetropolisError("the question is empty; write it in quotes after RUN")
    check_text("question", question)
    folder = run_folder(run)
    changed = on_command_line({"model": model}) | {"llm": llm, "engine": ()}
    options = options_of(folder, changed, trust=trust)
    scenario = options.scenario()
    check_name("agent", agent, [one.name for one in scenario.agents])
    client = options.client(options.connected(scenario))
    (asked,) = (one for one in scenario.agents if one.name == agent)
    # the default refuses: do not run the steps again first
    if type(asked).interview is Agent.interview:
        asyncio.run(asked.interview(question, None))
    found = state_at(folder, scenario.world, scenario.agents, at)
    answer = asyncio.run(_answer(RunDirectory(folder), scenario, found, agent, question, client))
    time = clock(scenario.world, found.step)
    if as_json:
        content = {"agent": agent, "step": found.step, "time": time}
        content |= {"question": question, "answer": answer}
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))
        return
    click.echo(f"{agent} at step {found.step:,} ({time})")
    click.echo(filled(without_controls(answer)))


async def _answer(
    origin: RunDirectory,
    scenario: Scenario,
    state: Checkpoint,
    agent: str,
    question: str,
    client: Client,
) -> str:
    try:
        await client.check()
        return await interview(origin, scenario.agents, state, agent, question, client)
    finally:
        await client.close()
