"""The stored data, encoded as bytes that stores never decode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import isfinite
from typing import Any, TypeVar

import msgspec

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.llm.usage import Purchases
from metropolis.store.base import RunInfo, StoreError
from metropolis.store.cells import Cells
from metropolis.store.claim import Claim, StateSnapshot
from metropolis.store.execution import Execution, execution_to_json
from metropolis.types import AgentId, Dispatch, MetropolisError, Position, Step
from metropolis.world.encoding import (
    entity_from_json,
    entity_to_json,
    event_from_json,
    event_to_json,
)
from metropolis.world.entities import AGENT, Entity, Event
from metropolis.world.parts import Changes, Parts, to_parts

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Node:
    """An agent's state at the beginning of a step."""

    agent: AgentId
    place: bytes
    """The agent's encoded position."""
    around: str
    """The cells that the agent may read, separated by spaces."""
    mind: Changes
    """Changes of the agent's mind."""


@dataclass(frozen=True, slots=True)
class EncodedVersion:
    """A version of an entity; an empty body: the entity is gone."""

    name: str
    cell: str
    body: bytes


@dataclass(frozen=True, slots=True)
class EncodedEvent:
    """An event, encoded as a line."""

    cell: str
    line: bytes


@dataclass(frozen=True, slots=True)
class EncodedCommit:
    """All that a commit writes, encoded for the store."""

    nodes: Sequence[Node]
    writes: Sequence[EncodedVersion]
    events: Sequence[EncodedEvent]
    acknowledgement: bytes


def encode_commit(cells: Cells, info: RunInfo, claim: Claim, execution: Execution) -> EncodedCommit:
    """Raises StoreError if JSON cannot represent a value, or execution and claim differ."""
    check_execution(claim, execution)
    check_minds(execution.minds, claim.agents)
    bodies = {
        entity.name: entity.position
        for _, entity in claim.snapshot.versions
        if entity.kind == AGENT
    }
    bodies |= {name: entity.position for name, entity in execution.writes.items() if entity}
    positions = {agent: bodies[info.agents[agent]] for agent in claim.agents}
    return EncodedCommit(
        _nodes(cells, positions, execution.minds),
        [_encoded_version(cells, name, entity) for name, entity in execution.writes.items()],
        _encoded_events(cells, execution.events),
        _encoded(
            partial(execution_to_json, reads=info.retractable),
            execution,
            f"what step {claim.step} of {claim.agents} did",
        ),
    )


def check_execution(claim: Claim, execution: Execution) -> None:
    """Raise StoreError if execution and claim differ."""
    if (execution.step, execution.agents) != (claim.step, claim.agents):
        raise StoreError(
            f"the execution of step {execution.step} of agents {execution.agents} was given for a "
            f"claim of step {claim.step} of agents {claim.agents}"
        )


def encode_initial_state(
    cells: Cells,
    info: RunInfo,
    entities: Iterable[Entity],
    minds: Mapping[AgentId, Any],
    events: Iterable[Event],
) -> EncodedCommit:
    """The initial writes of a run. Raises StoreError on missing bodies or non-JSON values."""
    known = {entity.name: entity for entity in entities}
    return EncodedCommit(
        _nodes(cells, first_positions(info, known.values(), minds), minds_in_parts(info, minds)),
        [_encoded_version(cells, name, entity) for name, entity in known.items()],
        _encoded_events(cells, events),
        b"",
    )


def first_positions(
    info: RunInfo, entities: Iterable[Entity], minds: Mapping[AgentId, Any]
) -> dict[AgentId, Position]:
    """The agents' first positions. Raises StoreError on missing bodies or minds."""
    known = {entity.name: entity.position for entity in entities}
    for name in info.agents:
        if name not in known:
            raise StoreError(f"the agent {name!r} has no body among the entities a run begins with")
    check_minds(minds, range(len(info.agents)))
    return {agent: known[name] for agent, name in enumerate(info.agents)}


def minds_in_parts(info: RunInfo, minds: Mapping[AgentId, Any]) -> dict[AgentId, Parts]:
    """The first minds. Raises StoreError on non-JSON values."""
    return {
        agent: _encoded(to_parts, mind, f"the mind of {info.agents[agent]!r}")
        for agent, mind in minds.items()
    }


def check_minds(minds: Iterable[AgentId], agents: Iterable[AgentId]) -> None:
    """Raise StoreError unless there is a mind for each of `agents`."""
    if set(minds) != set(agents):
        raise StoreError(f"minds of {sorted(minds)} were given for agents {sorted(agents)}")


def _nodes(
    cells: Cells, positions: Mapping[AgentId, Position], minds: Mapping[AgentId, Changes]
) -> list[Node]:
    return [
        Node(
            agent,
            msgspec.json.encode(position),
            cells.around_text(position),
            minds[agent],
        )
        for agent, position in positions.items()
    ]


def _encoded_version(cells: Cells, name: str, entity: Entity | None) -> EncodedVersion:
    if entity is None:
        return EncodedVersion(name, "", b"")
    _check_finite(entity.state, f"the entity {name!r}")
    body = _encoded(msgspec.json.encode, entity_to_json(entity), f"the entity {name!r}")
    return EncodedVersion(name, cells.of(entity.position), body)


def _encoded_events(cells: Cells, events: Iterable[Event]) -> list[EncodedEvent]:
    """Encode events with numbers, because the cells of a source's events are read in any order."""
    encoded = []
    for number, event in enumerate(events):
        what = f"the event {event.kind!r} of {event.source!r}"
        _check_finite(event.data, what)
        line = _encoded(msgspec.json.encode, (number, event_to_json(event)), what)
        encoded.append(EncodedEvent(cells.of(event.position), line))
    return encoded


def _encoded(encode: Callable[[Any], T], value: Any, what: str) -> T:
    try:
        return encode(value)
    except MetropolisError as error:
        raise StoreError(f"{error}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"{what} cannot be kept as JSON: {error}") from error


def _check_finite(value: Any, what: str) -> None:
    """Raise StoreError on infinity and NaN, which JSON would turn into None."""
    if isinstance(value, float):
        if not isfinite(value):
            raise StoreError(f"{what} holds {value}; only finite numbers can be kept in a store")
    elif isinstance(value, Mapping):
        for item in value.values():
            _check_finite(item, what)
    elif isinstance(value, tuple):
        for item in value:
            _check_finite(item, what)


def decode_snapshot(
    step: Step, versions: Iterable[tuple[Step, str, bytes]], lines: Iterable[bytes]
) -> StateSnapshot:
    """Decode versions (since, name, body); an empty body: the entity is gone."""
    seen, later = [], []
    for since, name, body in versions:
        entity = _entity(name, body) if body else None
        if since > step:
            later.append((since, name, entity))
        elif entity is not None:
            seen.append((since, entity))
    events = decode_events(lines)
    return StateSnapshot(
        step,
        seen,
        [event for event in events if event.step < step],
        later,
        [event for event in events if event.step >= step],
    )


@lru_cache(maxsize=4096)  # unchanged entities recur in every step
def _entity(name: str, body: bytes) -> Entity:
    return entity_from_json(name, msgspec.json.decode(body))


def decode_events(lines: Iterable[bytes]) -> list[Event]:
    """Decode events, sorted by source, then in order of emission."""
    numbered = [msgspec.json.decode(line) for line in lines]
    numbered.sort(key=lambda item: (item[1]["source"], item[0]))
    return [event_from_json(event) for _, event in numbered]


def position_of(place: bytes) -> Position:
    """The inverse of `Node.place`."""
    x, y = msgspec.json.decode(place)
    return x, y


def cluster_text(cluster: Dispatch | Claim) -> str:
    """The whole cluster: the step, then the agents."""
    return f"{cluster.step} " + " ".join(map(str, cluster.agents))


def cluster_of(text: str) -> Dispatch:
    """The inverse of `cluster_text`."""
    step, *agents = map(int, text.split(" "))
    return Dispatch(step, tuple(agents))


_key = msgspec.json.Decoder(Key)
_completion = msgspec.json.Decoder(Completion)


def answer_field(buyer: str, key: Key) -> bytes:
    """The field of an answer; several buyers may have an answer to the same call."""
    return f"{buyer} ".encode() + msgspec.json.encode(key)


def answers_of(encoded: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[Key, Completion]]:
    """Decode keys and answers, from fields of `answer_field` and completions."""
    for bought, completion in encoded:
        _, _, key = bought.partition(b" ")
        yield _key.decode(key), _completion.decode(completion)


def purchase(buyer: str, key: Key, completion: Completion) -> dict[str, int]:
    """The increments of the purchase sums for an answer."""
    took = {
        "calls": 1,
        "prompt_tokens": completion.prompt_tokens,
        "output_tokens": completion.output_tokens,
    }
    return {f"{what} {buyer} {key.function}": number for what, number in took.items()}


def purchases_of(sums: Mapping[str, int]) -> list[Purchases]:
    """The inverse of `purchase`, for all sums."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for name, number in sums.items():
        what, buyer, function = name.split(" ", 2)
        found.setdefault((buyer, function), {})[what] = number
    return [
        Purchases(*whose, of["calls"], of["prompt_tokens"], of["output_tokens"])
        for whose, of in sorted(found.items())
    ]
