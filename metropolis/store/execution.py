"""Execution records: what a worker returns for a cluster's step; and their JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isinf
from types import MappingProxyType
from typing import Any

import msgspec

from metropolis.llm.base import Completion
from metropolis.llm.call_log import CallRecord
from metropolis.llm.journal import Key
from metropolis.types import AgentId, Position, Step
from metropolis.world.encoding import (
    UNENCODABLE,
    check_actions,
    entity_from_json,
    entity_to_json,
    event_from_json,
    event_to_json,
    plain,
)
from metropolis.world.entities import Entity, Event
from metropolis.world.parts import Changes
from metropolis.world.state import Area, Version
from metropolis.world.transaction import Transaction
from metropolis.world.view import Reads

PaidAnswers = Mapping[Key, Completion]
"""Answers of language models in a step."""
NO_ANSWERS: PaidAnswers = MappingProxyType({})
_Version = tuple[Step, str | None, Any]
_Area = tuple[Position, float | None]


class ClusterEffects(msgspec.Struct, frozen=True, gc=False):
    """The effects of one cluster's joint actions, by name; the values are the execution's."""

    members: tuple[str, ...]
    writes: tuple[str, ...]
    answered: tuple[str, ...]
    """Members that the world asked: their minds may have changed after they acted."""

    @classmethod
    def of(cls, cluster: Transaction) -> ClusterEffects:
        """The effects of a cluster that the world has resolved."""
        members = tuple(member.name for member in cluster)
        return cls(members, tuple(cluster.writes), tuple(sorted(cluster.answered)))


class Execution(msgspec.Struct, frozen=True, gc=False):
    """One attempt at a cluster's step: what it read, and its effects, before the commit."""

    step: Step
    agents: tuple[AgentId, ...]
    actions: Mapping[str, Any]
    writes: Mapping[str, Entity | None]
    events: Sequence[Event]
    calls: Mapping[AgentId, Sequence[CallRecord]]
    minds: Mapping[AgentId, Changes] = {}
    """The changes of every member's state; empty if the worker shares the agents with the store."""
    observed: Mapping[str, Reads] = {}
    """Agent -> what the world read for its observation."""
    resolved: Mapping[str, Reads] = {}
    """Agent -> what the world read through it to resolve the actions."""
    attempt: int = 0
    """The number of the claim: attempts at the same step have different ones."""
    clusters: Sequence[ClusterEffects] = ()
    """The clusters into which its agents fall; left out of its JSON."""


class _Reads(msgspec.Struct, omit_defaults=True):
    """A version is (since, name, entity), without entity if there is none; see Reads."""

    entities: list[tuple[str, _Version | None]] = []
    areas: list[tuple[_Area, list[_Version]]] = []
    events: list[tuple[_Area, list[Any]]] = []


class _Line(msgspec.Struct, omit_defaults=True):
    step: Step
    agents: tuple[AgentId, ...]
    actions: Any = {}
    writes: dict[str, Any] = {}
    events: list[Any] = []
    calls: dict[AgentId, list[CallRecord]] = {}
    attempt: int = 0
    observed: dict[str, _Reads] = {}
    resolved: dict[str, _Reads] = {}


_encoder = msgspec.json.Encoder()
_actions = msgspec.json.Encoder(enc_hook=plain, order="deterministic")  # may contain sets
_decoder = msgspec.json.Decoder(_Line)


def execution_to_json(execution: Execution, *, reads: bool = False) -> bytes:
    """One line, without `minds`, which are stored by themselves; `reads`: with what was read.

    Raises MetropolisError, TypeError or ValueError if JSON cannot represent it.
    """
    observed, resolved = (
        {name: _reads_to_json(of) for name, of in each.items()} if reads else {}
        for each in (execution.observed, execution.resolved)
    )
    try:
        actions = _actions.encode(dict(execution.actions))
    except UNENCODABLE:
        check_actions(execution.step, execution.actions)
        raise
    return _encoder.encode(
        _Line(
            execution.step,
            execution.agents,
            msgspec.Raw(actions),
            {name: entity and entity_to_json(entity) for name, entity in execution.writes.items()},
            [event_to_json(event) for event in execution.events],
            {agent: list(calls) for agent, calls in execution.calls.items()},
            execution.attempt,
            observed,
            resolved,
        )
    )


def _reads_to_json(reads: Reads) -> _Reads:
    return _Reads(
        [(name, known and _version_to_json(known)) for name, known in reads.entities.items()],
        [
            (_area_to_json(area), [_version_to_json(version) for version in versions])
            for area, versions in reads.areas.items()
        ],
        [
            (_area_to_json(area), [event_to_json(event) for event in events])
            for area, events in reads.events.items()
        ],
    )


def _version_to_json(version: Version) -> _Version:
    since, entity = version
    if entity is None:
        return since, None, None
    return since, entity.name, entity_to_json(entity)


def _area_to_json(area: Area) -> _Area:
    centre, radius = area
    return centre, None if isinf(radius) else radius


def _reads_from_json(read: _Reads) -> Reads:
    return Reads(
        {name: known and _version_from_json(known) for name, known in read.entities},
        {
            _area_from_json(area): [_version_from_json(version) for version in versions]
            for area, versions in read.areas
        },
        {
            _area_from_json(area): [event_from_json(event) for event in events]
            for area, events in read.events
        },
    )


def _version_from_json(read: _Version) -> Version:
    since, name, entity = read
    return since, None if name is None else entity_from_json(name, entity)


def _area_from_json(area: _Area) -> Area:
    centre, radius = area
    return centre, inf if radius is None else radius


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
        observed={name: _reads_from_json(of) for name, of in read.observed.items()},
        resolved={name: _reads_from_json(of) for name, of in read.resolved.items()},
        attempt=read.attempt,
    )
