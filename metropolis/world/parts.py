"""Plain data in parts, so that who keeps it is told only what has changed.

A mapping or dataclass with something long in it is taken apart by its keys, and what is outermost
always; a long list into chunks of CHUNK items. A part's name is its place: JSON, a list of
[position, key] for mappings, whose order is kept so, and of the first item's number for lists. Its
body is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache
from operator import is_
from typing import Any

import msgspec

CHUNK = 16
"""Items of a list in a part."""
_SHORT = {str, int, float, bool, type(None), tuple}
Parts = Mapping[str, bytes]
Changes = Mapping[str, bytes | None]
"""Parts that are new or different, and None for those that are gone."""
Encoded = dict[str, tuple[list[Any], bytes]]
"""Chunks of items that never change, and their bodies, by name."""


def parts_of(
    value: Any,
    encode_other: Callable[[Any], Any] | None = None,
    encoded: Encoded | None = None,
) -> dict[str, bytes]:
    """`value` as JSON, in parts; `encode_other` makes plain data of what JSON does not know.

    Chunks that were `encoded` the last time, with the very same items that cannot have changed
    (frozen dataclasses, tuples, texts, numbers), are not encoded anew; what is encoded now is
    added.

    Raises TypeError, ValueError or OverflowError on what cannot be kept as JSON, NaN included.
    """
    found: dict[str, bytes] = {}
    encoder = _Encoder(encode_other, {} if encoded is None else encoded)
    _take_apart("[", value, found, encoder, at_top=True)
    return found


def whole(parts: Parts) -> Any:
    """The reverse of `parts_of`, as JSON has it."""
    top: dict[Any, Any] = {}
    for name, body in parts.items():
        path = [tuple(key) if isinstance(key, list) else key for key in msgspec.json.decode(name)]
        leaf = _Leaf(msgspec.json.decode(body))
        if not path:
            return leaf.value
        node = top
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = leaf
    return _joined(top)


def changes(before: Parts, now: Parts) -> dict[str, bytes | None]:
    """What makes `now` of `before`."""
    changed: dict[str, bytes | None] = {
        name: body for name, body in now.items() if before.get(name) != body
    }
    return changed | {name: None for name in before if name not in now}


def applied(before: Parts, changed: Changes) -> dict[str, bytes]:
    """The reverse of `changes`: what `now` was."""
    both = {**before, **changed}
    return {name: body for name, body in both.items() if body is not None}


@dataclass(frozen=True, slots=True)
class _Leaf:
    value: Any


class _Encoder:
    def __init__(self, encode_other: Callable[[Any], Any] | None, encoded: Encoded) -> None:
        self._encoder, self._encoded = msgspec.json.Encoder(enc_hook=encode_other), encoded

    def encode(self, value: Any) -> bytes:
        body = self._encoder.encode(value)
        if b"null" in body and value is not None:  # which may have been NaN or infinity
            hook = self._encoder.enc_hook
            json.dumps(msgspec.to_builtins(value, str_keys=True, enc_hook=hook), allow_nan=False)
        return body

    def encode_chunk(self, name: str, items: list[Any]) -> bytes:
        before, body = self._encoded.get(name, ((), b""))
        if len(before) == len(items) and all(map(is_, before, items)):
            return body
        body = self.encode(items)
        if all(map(_is_fixed, items)):
            self._encoded[name] = items, body
        else:
            self._encoded.pop(name, None)
        return body


def _is_fixed(value: Any) -> bool:
    """Whether it can never change."""
    kind = type(value)
    if kind is tuple:
        return all(map(_is_fixed, value))
    return kind in _SHORT or (
        _is_frozen(value.__class__)
        and all(_is_fixed(getattr(value, name)) for name in _names(value.__class__))
    )


@cache
def _is_frozen(kind: type) -> bool:
    return is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def _take_apart(
    prefix: str, value: Any, found: dict[str, bytes], encoder: _Encoder, at_top: bool
) -> None:
    if type(value) is list and len(value) > CHUNK:
        for first in range(0, len(value), CHUNK):
            name = f"{prefix}{first}]"
            found[name] = encoder.encode_chunk(name, value[first : first + CHUNK])
        return
    items = _items(value) if at_top or _is_long(value) else {}
    for position, (key, item) in enumerate(items.items()):
        below = prefix + _segment(position, key)
        if _is_long(item):
            _take_apart(f"{below},", item, found, encoder, at_top=False)
        else:
            found[f"{below}]"] = encoder.encode(item)
    if not items:
        found[f"{prefix.rstrip(',')}]"] = encoder.encode(value)


@lru_cache(maxsize=4096)
def _segment(position: int, key: str) -> str:
    return f"[{position},{json.dumps(key)}]"


def _is_long(value: Any) -> bool:
    """Whether there is a long list in it."""
    kind = type(value)
    if kind in _SHORT:
        return False
    if kind is list:
        return len(value) > CHUNK
    inner = (
        value.values()
        if kind is dict
        else [getattr(value, name) for name in _names(value.__class__)]
    )
    return any(_is_long(item) for item in inner if type(item) not in _SHORT)


def _items(value: Any) -> Mapping[str, Any]:
    """What a mapping of texts or a dataclass holds; empty for all else."""
    if type(value) is dict:
        return value if all(type(key) is str for key in value) else {}
    return {name: getattr(value, name) for name in _names(value.__class__)}


@cache
def _names(kind: type) -> tuple[str, ...]:
    if not is_dataclass(kind):
        return ()
    return tuple(field.name for field in fields(kind))


def _joined(node: Any) -> Any:
    if isinstance(node, _Leaf):
        return node.value
    if all(isinstance(key, int) for key in node):
        return [item for first in sorted(node) for item in node[first].value]
    return {key: _joined(node[position, key]) for position, key in sorted(node)}
