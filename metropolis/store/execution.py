"""Execution records: what a worker returns for a cluster's step; and their JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec

from metropolis.llm.base import Completion
from metropolis.llm.call_log import CallRecord
from metropolis.llm.journal import Key
from metropolis.types import AgentId, Step
from metropolis.world.encoding import (
    entity_from_json,
    entity_to_json,
    event_from_json,
    event_to_json,
    plain,
)
from metropolis.world.entities import Entity, Event
from metropolis.world.parts import Changes
from metropolis.world.view import Reads

PaidAnswers = Mapping[Key, Completion]
"""Answers of language models in a step."""
NO_ANSWERS: PaidAnswers = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Execution:
    """One attempt at a cluster's step: what it read, and its effects, before the commit."""

    step: Step
    agents: tuple[AgentId, ...]
    actions: Mapping[str, Any]
    writes: Mapping[str, Entity | None]
    events: Sequence[Event]
    calls: Mapping[AgentId, Sequence[CallRecord]]
    minds: Mapping[AgentId, Changes] = field(default_factory=dict)
    """The changes of every member's state; empty if the worker shares the agents with the store."""
    observed: Mapping[str, Reads] = field(default_factory=dict)
    """Agent -> what the world read for its observation."""
    resolved: Mapping[str, Reads] = field(default_factory=dict)
    """Agent -> what the world read through it to resolve the actions."""
    attempt: int = 0
    """The number of the claim: attempts at the same step have different ones."""


class _Line(msgspec.Struct, omit_defaults=True):
    step: Step
    agents: tuple[AgentId, ...]
    actions: Any = {}
    writes: dict[str, Any] = {}
    events: list[Any] = []
    calls: dict[AgentId, list[CallRecord]] = {}


_encoder = msgspec.json.Encoder()
_actions = msgspec.json.Encoder(enc_hook=plain, order="deterministic")  # may contain sets
_decoder = msgspec.json.Decoder(_Line)


def execution_to_json(execution: Execution) -> bytes:
    """One line. Raises MetropolisError, TypeError or ValueError if JSON cannot represent it."""
    return _encoder.encode(
        _Line(
            execution.step,
            execution.agents,
            msgspec.Raw(_actions.encode(dict(execution.actions))),
            {name: entity and entity_to_json(entity) for name, entity in execution.writes.items()},
            [event_to_json(event) for event in execution.events],
            {agent: list(calls) for agent, calls in execution.calls.items()},
        )
    )


def execution_from_json(line: bytes) -> Execution:
    """The inverse; actions have the types of JSON."""
    read = _decoder.decode(line)
    return Execution(
        read.step,
        read.agents,
        read.actions,
        {name: entity and entity_from_json(name, entity) for name, entity in read.writes.items()},
        [event_from_json(event) for event in read.events],
        read.calls,
    )
