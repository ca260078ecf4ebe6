"""Plain data split into parts, so that only changed parts need to be stored.

The outermost mapping or dataclass, and each one that contains a long list, is split by its keys; a
long list is split into chunks of CHUNK items. A part's name is its path as a JSON list: [position,
key] for mappings, which preserves their order, and the first item's index for lists. Its body is
JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any

import msgspec

from metropolis._core import Snapshot, have_same_items, is_immutable

CHUNK = 16
"""Items per chunk of a list."""
_ATOMS = {str, int, float, bool, type(None), tuple}
"""Types that are not searched for long lists; a tuple is part of one chunk."""
Parts = Mapping[str, bytes]
Changes = Mapping[str, bytes | None]
"""New and changed parts, and None for removed ones."""
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""MessagePack's NaN and infinities, whose exponents have all bits set."""


@dataclass(slots=True)
class PartsCache:
    """What has been encoded before, and is reused if the value has not changed."""

    chunks: dict[str, tuple[list[Any], bytes]] = field(default_factory=dict)
    """Name of a chunk -> its items, all of which are immutable, and its body."""
    lists: dict[str, tuple[list[Any], dict[str, bytes]]] = field(default_factory=dict)
    """Beginning of the names of a list's chunks -> its items and its chunks."""
    values: dict[str, tuple[Snapshot, bytes]] = field(default_factory=dict)
    """Name of another part -> a snapshot of its value, and its body."""


def to_parts(
    value: Any,
    encode_other: Callable[[Any], Any] | None = None,
    cache: PartsCache | None = None,
) -> dict[str, bytes]:
    """`value` as JSON, in parts; `encode_other` converts values that JSON does not support.

    A part in `cache` is reused if its value consists of the same immutable objects (frozen
    dataclasses, tuples, texts, numbers); newly encoded parts are added to it.

    Raises TypeError, ValueError or OverflowError on values that JSON cannot hold, NaN included.
    """
    found: dict[str, bytes] = {}
    encoder = _Encoder(encode_other, PartsCache() if cache is None else cache)
    _split("[", value, found, encoder)
    return found


def to_json(
    value: Mapping[str, Any], encode_other: Callable[[Any], Any] | None = None
) -> msgspec.Raw:
    """`value` as JSON in one piece; parameters and errors are those of `to_parts`."""
    encode = _Encoder(encode_other, PartsCache()).encode
    bodies = {key: msgspec.Raw(encode(item)) for key, item in value.items()}
    return msgspec.Raw(msgspec.json.encode(bodies))


def from_parts(parts: Parts, cache: PartsCache | None = None) -> Any:
    """The inverse of `to_parts`; the result has JSON's types.

    Items of chunks in `cache` are those of the saved value, whose types they keep.
    """
    top: dict[Any, Any] = {}
    chunks = {} if cache is None else cache.chunks
    for name, body in parts.items():
        path = _path(name)
        items, known = chunks.get(name, (None, None))
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
    def __init__(self, encode_other: Callable[[Any], Any] | None, cache: PartsCache) -> None:
        self._encoder, self._cache = msgspec.json.Encoder(enc_hook=encode_other), cache

    def encode(self, value: Any) -> bytes:
        body = self._encoder.encode(value)
        if b"null" in body and value is not None and self._may_be_infinite(value):
            hook = self._encoder.enc_hook
            json.dumps(msgspec.to_builtins(value, str_keys=True, enc_hook=hook), allow_nan=False)
        return body

    def encode_part(self, name: str, value: Any) -> bytes:
        """The body of the part `name`, which has no long list."""
        body = self.encode(value)
        if type(value) not in _ATOMS:
            snapshot = Snapshot(value)
            if snapshot.is_complete:
                self._cache.values[name] = snapshot, body
        return body

    def known_part(self, name: str, value: Any) -> bytes | None:
        """The body of the part `name` if it has been encoded with the same value."""
        known = self._cache.values.get(name)
        if known is None:
            return None
        if known[0].matches(value):
            return known[1]
        del self._cache.values[name]
        return None

    def _may_be_infinite(self, value: Any) -> bool:
        """Whether a null in the JSON of `value` may stand for NaN or infinity.

        MessagePack tells them from null; it takes a tenth of the time of the exact check.
        """
        try:
            packed = msgspec.msgpack.encode(value, enc_hook=self._encoder.enc_hook)
        except OverflowError:  # an integer of more than 64 bits
            return True
        return _NOT_FINITE.search(packed) is not None

    def encode_list(self, prefix: str, items: list[Any], found: dict[str, bytes]) -> None:
        """Add the chunks of a long list to `found`."""
        lists, chunks = self._cache.lists, self._cache.chunks
        before, bodies = lists.get(prefix, ([], {}))
        if not have_same_items(before, items):
            lists.pop(prefix, None)
            bodies = {}
            for first in range(0, len(items), CHUNK):
                name = f"{prefix}{first}]"
                bodies[name] = self._encode_chunk(name, items[first : first + CHUNK])
            if all(name in chunks for name in bodies):
                lists[prefix] = items.copy(), bodies
        found.update(bodies)

    def _encode_chunk(self, name: str, items: list[Any]) -> bytes:
        chunks = self._cache.chunks
        before, body = chunks.get(name, ([], b""))
        if have_same_items(before, items):
            return body
        body = self.encode(items)
        if all(map(is_immutable, items)):
            chunks[name] = items, body
        else:
            chunks.pop(name, None)
        return body


def _split(prefix: str, value: Any, found: dict[str, bytes], encoder: _Encoder) -> None:
    """Split `value`, which is the outermost one or has a long list."""
    if type(value) is list and len(value) > CHUNK:
        encoder.encode_list(prefix, value, found)
        return
    items = _items(value)
    for name, item in zip(_names(prefix, tuple(items)), items.values(), strict=True):
        body = None if type(item) in _ATOMS else encoder.known_part(name, item)
        if body is not None:
            found[name] = body
        elif _has_long_list(item):
            _split(f"{name[:-1]},", item, found, encoder)
        else:
            found[name] = encoder.encode_part(name, item)
    if not items:
        found[f"{prefix.rstrip(',')}]"] = encoder.encode(value)


@lru_cache(maxsize=4096)
def _path(name: str) -> list[Any]:
    return [tuple(key) if isinstance(key, list) else key for key in msgspec.json.decode(name)]


@lru_cache(maxsize=4096)
def _names(prefix: str, keys: tuple[str, ...]) -> list[str]:
    """The names of the parts into which a value with these keys is split."""
    return [f"{prefix}[{position},{json.dumps(key)}]]" for position, key in enumerate(keys)]


def _has_long_list(value: Any) -> bool:
    """Whether `value` is or contains a long list."""
    kind = type(value)
    if kind in _ATOMS:
        return False
    if kind is list:
        return len(value) > CHUNK
    inner = value.values() if kind is dict else _field_values(value.__class__)(value)
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
    kind = value.__class__
    return dict(zip(_field_names(kind), _field_values(kind)(value), strict=True))


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    if not is_dataclass(kind):
        return ()
    return tuple(field.name for field in fields(kind))


@cache
def _field_values(kind: type) -> Callable[[Any], Sequence[Any]]:
    """Returns the values of the fields of an instance; none of a class that is no dataclass."""
    names = _field_names(kind)
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: [getattr(value, name) for name in names]


def _join(node: Any) -> Any:
    if isinstance(node, _Leaf):
        return node.value
    if all(isinstance(key, int) for key in node):
        return [item for first in sorted(node) for item in node[first].value]
    return {key: _join(node[position, key]) for position, key in sorted(node)}
