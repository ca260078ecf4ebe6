"""Vocabulary shared by every part: identifiers, events and commands, and the error users see."""

from __future__ import annotations

from dataclasses import dataclass

AgentId = int
Step = int
Position = tuple[float, float]


class MetropolisError(Exception):
    """Bad input, said in one sentence: what is wrong, where, and what would be right.

    The command line prints it and exits with status 2.
    """


class CausalityError(MetropolisError):
    """A world reached further than its radius or velocity allow, or kept state outside the engine.

    Names the agent, the step, what was reached for and by how much it was too far.
    """


class AgentError(MetropolisError):
    """An agent or a world has raised what would end a thread, a task or the interpreter.

    Names the agent, the step, the function, and the file and line of theirs that led there. Other
    exceptions of theirs are raised as they are, with such a sentence as a note.
    """


@dataclass(frozen=True, slots=True)
class Commit:
    """Event: the cluster `agents` (ascending) finished its step and now stands at `positions`."""

    agents: tuple[AgentId, ...]
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Command: run `step` for the cluster `agents` (ascending)."""

    step: Step
    agents: tuple[AgentId, ...]
