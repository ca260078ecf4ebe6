"""Types shared by every part: identifiers, events and commands, and the errors that users see."""

from __future__ import annotations

import msgspec

AgentId = int
Step = int
Position = tuple[float, float]


class MetropolisError(Exception):
    """Bad input, described in one sentence: what is wrong, where, and what would be right.

    The command line prints it and exits with status 2.
    """


class CausalityError(MetropolisError):
    """A world reached further than its radius or velocity allow, or kept state outside the engine.

    Names the agent, the step, the target and the distance beyond the limit.
    """


class AgentError(MetropolisError):
    """An agent or a world raised an exception that would end a thread, a task or the interpreter.

    Names the agent, the step, the function, and the file and line in the user's code. Their other
    exceptions are raised unchanged, with such a sentence as a note.
    """


class Commit(msgspec.Struct, frozen=True, gc=False):
    """Event: the cluster `agents` (ascending) finished its step and is now at `positions`."""

    agents: tuple[AgentId, ...]
    positions: tuple[Position, ...]


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    """Command: run `step` for the cluster `agents` (ascending)."""

    step: Step
    agents: tuple[AgentId, ...]
