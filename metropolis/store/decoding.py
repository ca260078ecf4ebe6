"""Decodes Redis's replies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from metropolis.store.base import Acknowledged
from metropolis.store.claim import Claim
from metropolis.store.encoding import (
    EncodedCommit,
    answers_of,
    cluster_of,
    decode_snapshot,
)
from metropolis.store.execution import execution_from_json
from metropolis.types import Step


def arguments_of(written: EncodedCommit) -> Iterator[Any]:
    """A commit's nodes, versions and events, in the format of common.lua."""
    yield len(written.nodes)
    for node in written.nodes:
        yield from (node.agent, node.place, node.around)
        changed = [part for part in node.mind.items() if part[1] is not None]
        gone = [name for name, body in node.mind.items() if body is None]
        yield len(changed)
        for name, body in changed:
            yield from (name, body)
        yield len(gone)
        yield from gone
    yield len(written.writes)
    for write in written.writes:
        yield from (write.name, write.cell, write.body)
    yield len(written.events)
    for event in written.events:
        yield from (event.cell, event.line)


def claims_of(worker: str, reply: Iterable[bytes]) -> list[Claim]:
    """The claims in a reply of `described` in claiming.lua."""
    values = iter(reply)
    number, many = int(next(values)), int(next(values))
    return [_claim_of(number, worker, values) for _ in range(many)]


def _claim_of(number: int, worker: str, values: Iterator[bytes]) -> Claim:
    name, cluster = next(values).decode(), cluster_of(next(values).decode())
    until = int(next(values))
    versions, events = _take_list(values), _take_list(values)
    minds = {int(next(values)): parts_in(_take_list(values)) for _ in range(int(next(values)))}
    return Claim(
        name,
        number,
        worker,
        cluster.step,
        cluster.agents,
        decode_snapshot(cluster.step, versions_of(versions), lines_of(events)),
        minds,
        dict(answers_of(pairs_of(_take_list(values)))),
        until,
    )


def _take_list(values: Iterator[bytes]) -> list[bytes]:
    return [*islice(values, int(next(values)))]


def pairs_of(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """The pairs of a flat list."""
    return zip(flat[::2], flat[1::2], strict=True)


def parts_in(flat: Sequence[bytes]) -> dict[str, bytes]:
    """The parts of a mind. Raises DecodeError if one is no JSON: they are decoded elsewhere."""
    parts = {name.decode(): body for name, body in pairs_of(flat)}
    for body in parts.values():
        msgspec.json.decode(body, type=msgspec.Raw)
    return parts


def versions_of(flat: Sequence[bytes]) -> Iterator[tuple[Step, str, bytes]]:
    """(since, name, body); an empty body: the entity is gone."""
    for since, name, body in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        yield int(since), name.decode(), body


def lines_of(several: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of all cells."""
    for lines in several:
        yield from lines.split(b"\n")


def acknowledged_in(reply: Sequence[Any] | None) -> list[Acknowledged]:
    """The entries of one stream in a reply of XREAD; fields may be a list or a dict."""
    if not reply:
        return []
    ((_, entries),) = reply
    return [_acknowledged(entry, _fields(fields)) for entry, fields in entries]


def _acknowledged(entry: bytes, fields: Mapping[bytes, bytes]) -> Acknowledged:
    execution = execution_from_json(fields[b"execution"])
    return Acknowledged(entry.decode(), execution, fields[b"continues"] == b"1")


def _fields(fields: Any) -> Mapping[bytes, bytes]:
    return dict(pairs_of(fields)) if isinstance(fields, list) else fields


def order_of(entry: str) -> tuple[int, int]:
    """A sort key for ids of a stream's entries."""
    first, _, second = entry.partition("-")
    return int(first), int(second or 0)
