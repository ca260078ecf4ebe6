"""Plain data split into parts, so that only changed parts need to be stored.

The outermost mapping or dataclass, and each one that contains a long list, is split by its keys; a
long list is split into chunks of CHUNK items. A part's name is its path as a JSON list: [position,
key] for mappings, which preserves their order, and the first item's index for lists. Its body is
JSON.
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
"""Items per chunk of a list."""
_ATOMS = {str, int, float, bool, type(None), tuple}
"""Types that are not searched for long lists; a tuple is part of one chunk."""
Parts = Mapping[str, bytes]
Changes = Mapping[str, bytes | None]
"""New and changed parts, and None for removed ones."""
ChunkCache = dict[str, tuple[list[Any], bytes]]
"""Name of a chunk -> its items, all immutable, and its body."""


def to_parts(
    value: Any,
    encode_other: Callable[[Any], Any] | None = None,
    cache: ChunkCache | None = None,
) -> dict[str, bytes]:
    """`value` as JSON, in parts; `encode_other` converts values that JSON does not support.

    A chunk in `cache` with identical, immutable items (frozen dataclasses, tuples, texts, numbers)
    is reused; newly encoded chunks are added to it.

    Raises TypeError, ValueError or OverflowError on values that JSON cannot hold, NaN included.
    """
    found: dict[str, bytes] = {}
    encoder = _Encoder(encode_other, {} if cache is None else cache)
    _split("[", value, found, encoder)
    return found


def to_json(
    value: Mapping[str, Any], encode_other: Callable[[Any], Any] | None = None
) -> msgspec.Raw:
    """`value` as JSON in one piece; parameters and errors are those of `to_parts`."""
    encode = _Encoder(encode_other, {}).encode
    bodies = {key: msgspec.Raw(encode(item)) for key, item in value.items()}
    return msgspec.Raw(msgspec.json.encode(bodies))


def from_parts(parts: Parts, cache: ChunkCache | None = None) -> Any:
    """The inverse of `to_parts`; the result has JSON's types.

    Items of chunks in `cache` are those of the saved value, whose types they keep.
    """
    top: dict[Any, Any] = {}
    for name, body in parts.items():
        path = _path(name)
        items, known = cache.get(name, (None, None)) if cache else (None, None)
        leaf = _Leaf(items if known == body else msgspec.json.decode(body))
        if not path:
            return leaf.value
        node = top
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = leaf
    return _join(top)


def changed_parts(before: Parts, now: Parts) -> dict[str, bytes | None]:
    """The changes that turn `before` into `now`."""
    changed: dict[str, bytes | None] = {
        name: body for name, body in now.items() if before.get(name) != body
    }
    return changed | {name: None for name in before if name not in now}


def apply_changes(before: Parts, changed: Changes) -> dict[str, bytes]:
    """The inverse of `changed_parts`: apply `changed` to `before`."""
    both = {**before, **changed}
    return {name: body for name, body in both.items() if body is not None}


@dataclass(frozen=True, slots=True)
class _Leaf:
    value: Any


class _Encoder:
    def __init__(self, encode_other: Callable[[Any], Any] | None, cache: ChunkCache) -> None:
        self._encoder, self._cache = msgspec.json.Encoder(enc_hook=encode_other), cache

    def encode(self, value: Any) -> bytes:
        body = self._encoder.encode(value)
        if b"null" in body and value is not None:  # null may stand for NaN or infinity
            hook = self._encoder.enc_hook
            json.dumps(msgspec.to_builtins(value, str_keys=True, enc_hook=hook), allow_nan=False)
        return body

    def encode_chunk(self, name: str, items: list[Any]) -> bytes:
        before, body = self._cache.get(name, ((), b""))
        if len(before) == len(items) and all(map(is_, before, items)):
            return body
        body = self.encode(items)
        if all(map(is_immutable, items)):
            self._cache[name] = items, body
        else:
            self._cache.pop(name, None)
        return body


def is_immutable(value: Any) -> bool:
    """Whether `value` is immutable."""
    kind = type(value)
    if kind is tuple:
        return all(map(is_immutable, value))
    return kind in _ATOMS or (
        _is_frozen(value.__class__)
        and all(is_immutable(getattr(value, name)) for name in _field_names(value.__class__))
    )


@cache
def _is_frozen(kind: type) -> bool:
    return is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def _split(prefix: str, value: Any, found: dict[str, bytes], encoder: _Encoder) -> None:
    """Split `value`, which is the outermost one or has a long list."""
    if type(value) is list and len(value) > CHUNK:
        for first in range(0, len(value), CHUNK):
            name = f"{prefix}{first}]"
            found[name] = encoder.encode_chunk(name, value[first : first + CHUNK])
        return
    items = _items(value)
    for position, (key, item) in enumerate(items.items()):
        below = prefix + _segment(position, key)
        if _has_long_list(item):
            _split(f"{below},", item, found, encoder)
        else:
            found[f"{below}]"] = encoder.encode(item)
    if not items:
        found[f"{prefix.rstrip(',')}]"] = encoder.encode(value)


@lru_cache(maxsize=4096)
def _path(name: str) -> list[Any]:
    return [tuple(key) if isinstance(key, list) else key for key in msgspec.json.decode(name)]


@lru_cache(maxsize=4096)
def _segment(position: int, key: str) -> str:
    return f"[{position},{json.dumps(key)}]"


def _has_long_list(value: Any) -> bool:
    """Whether `value` is or contains a long list."""
    kind = type(value)
    if kind in _ATOMS:
        return False
    if kind is list:
        return len(value) > CHUNK
    inner = (
        value.values()
        if kind is dict
        else [getattr(value, name) for name in _field_names(value.__class__)]
    )
    for item in inner:  # `any` of a generator takes twice as long
        kind = type(item)
        if kind is list:
            if len(item) > CHUNK:
                return True
        elif kind not in _ATOMS and _has_long_list(item):
            return True
    return False


def _items(value: Any) -> Mapping[str, Any]:
    """The items of a dict with text keys or the fields of a dataclass; empty for other values."""
    if type(value) is dict:
        return value if all(type(key) is str for key in value) else {}
    return {name: getattr(value, name) for name in _field_names(value.__class__)}


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    if not is_dataclass(kind):
        return ()
    return tuple(field.name for field in fields(kind))


def _join(node: Any) -> Any:
    if isinstance(node, _Leaf):
        return node.value
    if all(isinstance(key, int) for key in node):
        return [item for first in sorted(node) for item in node[first].value]
    return {key: _join(node[position, key]) for position, key in sorted(node)}
