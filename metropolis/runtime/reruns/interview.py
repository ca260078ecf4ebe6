"""An interview of an agent of a recorded run; it changes neither the agent nor the run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from metropolis.llm.agent import LLM, Sender
from metropolis.llm.call_log import in_strand
from metropolis.llm.followed_tasks import follow_tasks
from metropolis.names import cut
from metropolis.runtime.folder.checkpoint import Checkpoint
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.reruns.state_at import agent_at
from metropolis.types import MetropolisError
from metropolis.workers.invocations import Invocation, Invocations
from metropolis.world.base import Agent


async def interview(
    origin: RunDirectory,
    agents: Sequence[Agent],
    state: Checkpoint,
    name: str,
    question: str,
    client: Sender,
) -> str:
    """The answer of a copy of the agent `name`, as it is in `state`, to `question`.

    `agents` are those of the run in `origin`; they are not changed. The model's answers come from
    `client`, with sampling seeds keyed like those of the run. Raises MetropolisError if the agent
    answers no interviews or its answer is no text.
    """
    number = [agent.name for agent in agents].index(name)
    origin.read()
    seed = origin.seed
    agent = agent_at(state, agents, name)
    agent.begin_step(seed, state.step)
    llm = LLM(client, agent=number, step=state.step, seed=seed, program=name)
    follow_tasks(asyncio.get_running_loop())
    with (
        Invocation(Invocations(), state.step, (name,), agent.interview, agent, llm),
        in_strand(llm.log.strand()),
    ):
        answer: object = await agent.interview(question, llm)
    if not isinstance(answer, str):
        raise MetropolisError(
            f"{type(agent).__name__}.interview returned {cut(answer)}; it should return a text"
        )
    return answer
