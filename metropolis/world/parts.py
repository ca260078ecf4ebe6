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
from typing import Any

import msgspec

CHUNK = 16
"""Items of a list in a part."""
_SHORT = {str, int, float, bool, type(None), tuple}
Parts = Mapping[str, bytes]
Changes = Mapping[str, bytes | None]
"""Parts that are new or different, and None for those that are gone."""


def parts_of(value: Any, encode_other: Callable[[Any], Any] | None = None) -> dict[str, bytes]:
    """`value` as JSON, in parts; `encode_other` makes plain data of what JSON does not know.

    Raises TypeError, ValueError or OverflowError on what cannot be kept as JSON, NaN included.
    """
    found: dict[str, bytes] = {}
    _take_apart("[", value, found, msgspec.json.Encoder(enc_hook=encode_other), at_top=True)
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


def _take_apart(
    prefix: str, value: Any, found: dict[str, bytes], encoder: msgspec.json.Encoder, at_top: bool
) -> None:
    if type(value) is list and len(value) > CHUNK:
        for first in range(0, len(value), CHUNK):
            found[f"{prefix}{first}]"] = _encoded(value[first : first + CHUNK], encoder)
        return
    items = _items(value) if at_top or _is_long(value) else {}
    for position, (key, item) in enumerate(items.items()):
        below = prefix + _segment(position, key)
        if _is_long(item):
            _take_apart(f"{below},", item, found, encoder, at_top=False)
        else:
            found[f"{below}]"] = _encoded(item, encoder)
    if not items:
        found[f"{prefix.rstrip(',')}]"] = _encoded(value, encoder)


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
    if kind is dict:
        return any(map(_is_long, value.values()))
    return any(_is_long(getattr(value, name)) for name in _names(value.__class__))


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


def _encoded(value: Any, encoder: msgspec.json.Encoder) -> bytes:
    body = encoder.encode(value)
    if b"null" in body and value is not None:  # which may have been NaN or infinity
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=encoder.enc_hook)
        json.dumps(plain, allow_nan=False)
    return body


def _joined(node: Any) -> Any:
    if isinstance(node, _Leaf):
        return node.value
    if all(isinstance(key, int) for key in node):
        return [item for first in sorted(node) for item in node[first].value]
    return {key: _joined(node[position, key]) for position, key in sorted(node)}
