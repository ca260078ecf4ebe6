"""Sets in another order, such as they have in another process, or once they are restored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from typing import Any

import msgspec

from metropolis.world.base import Agent
from metropolis.world.saved_check import field_names

_ATTEMPTS = 8


def rearrange_sets(agents: Iterable[Agent]) -> bool:
    """Replace the sets in fields of `agents` by equal ones in another order, where there is one.

    Returns whether there was any.
    """
    found = [_rearrange_fields(agent) for agent in agents]
    return any(found)


def _rearrange_fields(owner: Any) -> bool:
    put = msgspec.structs.force_setattr if isinstance(owner, msgspec.Struct) else object.__setattr__
    names = [name for name in field_names(owner.__class__) if not name.startswith("_")]
    found = {name: _rearranged(getattr(owner, name)) for name in names}
    for name, (value, _) in found.items():
        put(owner, name, value)
    return any(was_found for _, was_found in found.values())


def _rearranged(value: Any) -> tuple[Any, bool]:
    """`value`, with the sets in it in another order, and whether there is one."""
    kind = type(value)
    if kind is set or kind is frozenset:
        order = list(value)
        different = (one for one in _equal_to(value) if list(one) != order)
        return (found, True) if (found := next(different, None)) is not None else (value, False)
    if kind is dict:
        both = [_rearranged(item) for item in value.values()]
        new: Any = dict(zip(value, (item for item, _ in both), strict=True))
    elif kind is list or kind is tuple:
        both = [_rearranged(item) for item in value]
        new = kind(item for item, _ in both)
    else:
        return value, (is_dataclass(kind) or isinstance(value, msgspec.Struct)) and (
            _rearrange_fields(value)
        )
    return new, any(was_found for _, was_found in both)


def _equal_to(items: set[Any] | frozenset[Any]) -> Iterator[set[Any] | frozenset[Any]]:
    """Sets equal to `items`: others were in it before, and its items came in another order."""
    order = list(items)
    for attempt in range(_ATTEMPTS):
        order = [*order[1:], *order[:1]] if attempt else order[::-1]
        if isinstance(items, frozenset):
            yield frozenset(order)
            continue
        others = {_Other(number) for number in range(8 << attempt)}  # tables of other sizes
        grown = {*others, *order}
        for other in others:  # `grown -= others` would make a new table
            grown.discard(other)
        yield grown


class _Other:
    """An item that equals no other, with a hash that is the same in every process."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __hash__(self) -> int:
        return self._number
