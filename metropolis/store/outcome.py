"""The outcome of a cluster's step, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

PaidAnswers = Mapping[Key, Completion]
"""Answers of language models in a step."""
NO_ANSWERS: PaidAnswers = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effects of a cluster's step, before the commit."""

    step: Step
    agents: tuple[AgentId, ...]
    actions: Mapping[str, Any]
    writes: Mapping[str, Entity | None]
    events: Sequence[Event]
    calls: Mapping[AgentId, Sequence[CallRecord]]


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


def outcome_to_json(outcome: Outcome) -> bytes:
    """One line. Raises MetropolisError, TypeError or ValueError if JSON cannot represent it."""
    return _encoder.encode(
        _Line(
            outcome.step,
            outcome.agents,
            msgspec.Raw(_actions.encode(dict(outcome.actions))),
            {name: entity and entity_to_json(entity) for name, entity in outcome.writes.items()},
            [event_to_json(event) for event in outcome.events],
            {agent: list(calls) for agent, calls in outcome.calls.items()},
        )
    )


def outcome_from_json(line: bytes) -> Outcome:
    """The inverse; actions have the types of JSON."""
    read = _decoder.decode(line)
    return Outcome(
        read.step,
        read.agents,
        read.actions,
        {name: entity and entity_from_json(name, entity) for name, entity in read.writes.items()},
        [event_from_json(event) for event in read.events],
        read.calls,
    )
