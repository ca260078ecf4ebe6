"""What an optimistic run and its workers in other processes send each other.

The run sends commands: Start, Answer, Stop. A worker sends messages: all others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from metropolis.llm.agent import CallsMade
from metropolis.llm.base import Completion, Request
from metropolis.speculation.base import ExecutionId
from metropolis.types import AgentError, AgentId, Step
from metropolis.world.parts import Changes
from metropolis.world.user_errors import explanation_of, text_of

CallNumber = int
"""The number of a call among all calls of its worker."""


@dataclass(frozen=True, slots=True)
class Start:
    """Command: let an agent proceed."""

    id: ExecutionId
    agent: AgentId
    step: Step
    mind: Changes
    """The mind before the execution, relative to that of the agent's last Start, if any."""
    draws: Any
    """The state of `Agent.random`, if it was used in this step."""
    observation: bytes
    """Pickled."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Command: a piece of an answer, the whole answer, or the error of the call, pickled."""

    call: CallNumber
    item: str | Completion | bytes


@dataclass(frozen=True, slots=True)
class Stop:
    """Command: abort the execution."""

    id: ExecutionId


Command = Start | Answer | Stop


@dataclass(frozen=True, slots=True)
class Called:
    """The execution makes a call."""

    id: ExecutionId
    call: CallNumber
    request: Request
    is_stream: bool


@dataclass(frozen=True, slots=True)
class Closed:
    """The agent has cancelled the call, or closed its stream."""

    id: ExecutionId
    call: CallNumber


@dataclass(frozen=True, slots=True)
class Decided:
    """The execution has ended."""

    id: ExecutionId
    action: bytes
    """Pickled."""
    mind: Changes
    """The mind after the execution, relative to that before it."""
    draws: Any
    """See Start."""
    made: CallsMade


@dataclass(frozen=True, slots=True)
class Raised:
    """The execution has ended with an error."""

    id: ExecutionId
    error: bytes
    """Pickled."""


Message = Called | Closed | Decided | Raised


def pickled_error(
    error: Exception, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]
) -> bytes:
    """`error`, or one with its sentence if it cannot be sent."""
    explained = explanation_of(error)
    try:
        pickled = dumps(error)
        if explanation_of(loads(pickled)) == explained:
            return pickled
    except Exception:  # noqa: BLE001, S110 -- an author's error may raise anything
        pass
    if explained is not None:
        return dumps(AgentError(explained))
    return dumps(RuntimeError(f"{type(error).__name__}: {text_of(error)}"))
