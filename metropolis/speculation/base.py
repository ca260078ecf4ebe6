"""The protocol of speculation: events in, commands out.

A step is executed in two halves. To *proceed* is one agent's half: observation and mind to action;
it calls models and takes long. To *resolve* is one cluster's half: actions to writes and events; it
is short. Both record every *read*: a question to the world with its answer. Answers, minds and
values are only compared, never interpreted: digests suffice.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from metropolis.types import AgentId, Position, Step

Digest = Hashable
"""Equal for equal values."""
ExecutionId = int


class Value(NamedTuple):
    """The value of an entity: where it is, and the rest."""

    position: Position
    digest: Digest


class Emitted(NamedTuple):
    """An event, perceived in the step after its own."""

    source: str
    position: Position
    digest: Digest


class Question(NamedTuple):
    """A read of the world as of the beginning of a step.

    `entity`: the value of the entity `name`; None: there is none. `entities`: the (name, value) of
    those perceived within `radius` of `centre`, by name. `events`: those of the step before that
    are perceived there, by source, then by order of emission.
    """

    kind: Literal["entity", "entities", "events"]
    name: str = ""
    centre: Position = (0.0, 0.0)
    radius: float = 0.0


Answer = Value | None | tuple[tuple[str, Value], ...] | tuple[Emitted, ...]
Reads = Sequence[tuple[Question, Answer]]


@dataclass(frozen=True, slots=True)
class Observed:
    """Event: the agent has its observation and calls its models."""

    id: ExecutionId
    reads: Reads


@dataclass(frozen=True, slots=True)
class Proceeded:
    """Event: the agent has decided its action."""

    id: ExecutionId


@dataclass(frozen=True, slots=True)
class Resolved:
    """Event: the world has resolved the actions of a cluster."""

    id: ExecutionId
    reads: Reads
    writes: Mapping[str, Value | None]
    """Entity -> its new value; None: removed."""
    events: Sequence[Emitted]
    minds: Mapping[AgentId, Digest]
    """The minds of all members afterwards."""
    forecasts: Mapping[AgentId, Sequence[Value]] = field(default_factory=dict)
    """Member -> the values that it expects of its body at the beginnings of the steps after the
    next one. The next results may differ: executions that have read it are repeated then."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Event: the execution has come to nothing, because of its worker for example."""

    id: ExecutionId


@dataclass(frozen=True, slots=True)
class Failed:
    """Event: a speculative execution raised an error, which its predictions may have caused.

    It is repeated when all that it reads is final. The error of a sure execution ends the run.
    """

    id: ExecutionId


Event = Observed | Proceeded | Resolved | Lost | Failed


@dataclass(frozen=True, slots=True)
class Proceed:
    """Command: let `agent` observe `step` and decide, on a copy of its mind.

    The mind is that after the resolution `mind`; None: the final one. A `sure` execution reads
    final versions only; others the newest ones, speculative ones included.
    """

    id: ExecutionId
    step: Step
    agent: AgentId
    mind: ExecutionId | None
    sure: bool


@dataclass(frozen=True, slots=True)
class Resolve:
    """Command: resolve the actions of `agents`, a whole cluster, from their minds after `proceeds`.

    The writes of the result are visible to speculative executions until it is dropped.
    """

    id: ExecutionId
    step: Step
    agents: tuple[AgentId, ...]
    proceeds: tuple[ExecutionId, ...]
    sure: bool


@dataclass(frozen=True, slots=True)
class Abort:
    """Command: end an execution in flight; its result would be refused."""

    id: ExecutionId


@dataclass(frozen=True, slots=True)
class Drop:
    """Command: forget the result of the resolution, or the forecast, `id`.

    Another one replaces it, the agent expects nothing any more, or a committed result of the same
    step has written the same entity.
    """

    id: ExecutionId


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Command: the result of the resolution `id` is final."""

    id: ExecutionId
    step: Step
    agents: tuple[AgentId, ...]


@dataclass(frozen=True, slots=True)
class Promote:
    """Command: the proceed in flight `id` has become sure; its requests are needed."""

    id: ExecutionId


@dataclass(frozen=True, slots=True)
class Predict:
    """Command: let speculative executions see the forecast of `agent` as a write of `step`.

    It was reported with the resolution `source`. It is visible until `id` is dropped.
    """

    id: ExecutionId
    step: Step
    agent: AgentId
    source: ExecutionId


Command = Abort | Drop | CommitResult | Promote | Resolve | Proceed | Predict


class Speculation(Protocol):
    """A pure state machine in front of a controller: no clock, thread, socket or randomness.

    The controller, with the `versioned` rule, is the commit stage: the clusters that it dispatches
    are those whose step cannot be influenced any more. Commands of one call are ordered: drops
    and predictions first, each commit after those it depends on, and each execution after what it
    reads.
    """

    def start(self) -> list[Command]:
        """Return the sure executions that can run initially.

        Called once: the second call raises MetropolisError.
        """

    def handle(self, events: Sequence[Event]) -> list[Command]:
        """Apply `events`; those of aborted executions are ignored.

        Raises MetropolisError on an event that does not belong to its execution.
        """

    def candidates(self) -> list[AgentId]:
        """The agents that could proceed speculatively now, ascending."""

    def next_step(self, agent: AgentId) -> Step:
        """The first step of `agent` without a valid result: that of a candidate's next proceed."""

    def speculate(self, agents: Sequence[AgentId]) -> list[Command]:
        """Let candidates proceed. Which ones is a matter of cost, never of correctness."""

    @property
    def floor(self) -> Step:
        """The smallest step that any agent still has to commit."""

    @property
    def finished(self) -> bool:
        """Whether every agent has committed its last step."""

    def validate(self) -> None:
        """Check every invariant; raises InvariantError. Slow; for tests."""
