"""The items of a source: from a file, of drawn sizes, or the calls of a trace."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import numpy as np

from metropolis.names import check_name, did_you_mean
from metropolis.plan.application import REQUESTS_MAX, TOKENS_MAX, ApplicationError, Item, Part
from metropolis.plan.toml_table import Table
from metropolis.trace.parquet import read_trace
from metropolis.trace.schema import Calls, Trace

Span: TypeAlias = int | tuple[int, int]
"""A number, or the least and the largest of numbers that are drawn uniformly."""


LINE = '{"key": "…", "text": "…"}, with "tokens": N or "parts": […] in place of "text"'


class Traces(dict[Path, Trace]):
    """Traces by path, each read once."""

    def __missing__(self, path: Path) -> Trace:
        self[path] = read_trace(path)
        return self[path]


class _FileSource(msgspec.Struct):
    file: str


class _DrawnSource(msgspec.Struct):
    count: Annotated[int, msgspec.Meta(ge=1, le=REQUESTS_MAX)]
    tokens: Span
    parts: Span = 1
    output_tokens: Span | None = None
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0


class _TraceSource(msgspec.Struct):
    trace: str
    model: str | None = None
    function: str | None = None


class _Line(msgspec.Struct):
    """A line of a file of items."""

    key: str | None = None
    text: str | None = None
    tokens: int | None = None
    parts: list[Part] | None = None
    output_tokens: int | list[int] | None = None


def items_of(table: Table, traces: Traces) -> tuple[Item, ...]:
    """The items that the table of a source describes. Raises MetropolisError on a fault."""
    source: object = table.read_one_of(
        {"file": _FileSource, "count": _DrawnSource, "trace": _TraceSource}
    )
    match source:
        case _FileSource(file):
            path = table.existing(file, "file")
            with table.located("file"):
                return read_items(path)
        case _DrawnSource():
            return _drawn(table, source)
        case _TraceSource(trace):
            path = table.existing(trace, "trace")
            with table.located("trace"):
                return _of_calls(traces[path].calls, source)
    raise AssertionError(source)


def read_items(path: Path) -> tuple[Item, ...]:
    """The items of a file, one on each line that is not empty.

    Raises ApplicationError that names the line.
    """
    try:
        lines = path.read_bytes().removeprefix(BOM_UTF8).splitlines()
    except OSError as error:
        raise ApplicationError(f"{path} cannot be read: {error.strerror}") from error
    items, numbers = [], dict[str, int]()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            item = _item(line, number)
        except (ValueError, RecursionError, ApplicationError) as error:
            raise ApplicationError(f"{path}, line {number}: {error}; write {LINE}") from error
        if (earlier := numbers.setdefault(item.key, number)) != number:
            raise ApplicationError(
                f"{path}, line {number}: the key {item.key!r} repeats that of line {earlier}; give "
                "each line a different key"
            )
        items.append(item)
    return tuple(items)


def _item(line: bytes, number: int) -> Item:
    content = msgspec.json.decode(line)
    if not isinstance(content, dict):
        raise ApplicationError("is not a JSON object")
    for field in content:
        if field not in _Line.__struct_fields__:
            known = _Line.__struct_fields__
            raise ApplicationError(f"there is no field {field!r}{did_you_mean(field, known)}")
    read = msgspec.convert(content, _Line)
    given = [one for one in (read.text, read.tokens, read.parts) if one is not None]
    if len(given) != 1:
        raise ApplicationError(f"has {len(given) or 'none'} of the fields text, tokens and parts")
    parts = tuple(given[0]) if isinstance(given[0], list) else (given[0],)
    output = read.output_tokens
    if isinstance(output, int):
        output = [output]
    return Item(read.key or str(number), parts, None if output is None else tuple(output))


def _drawn(table: Table, source: _DrawnSource) -> tuple[Item, ...]:
    random = np.random.default_rng(source.seed)
    sizes: dict[str, tuple[int, int]] = {}
    for field in ("parts", "tokens", "output_tokens"):
        value: Span | None = getattr(source, field)
        least, most = value if isinstance(value, tuple) else (value or 1, value or 1)
        limit = TOKENS_MAX if "tokens" in field else REQUESTS_MAX
        if value == 0 or not 1 <= least <= most <= limit:
            shown = [*value] if isinstance(value, tuple) else value
            raise table.error(
                f"is {shown}; write a number in [1, {limit}], or the least and the largest of them",
                field,
            )
        sizes[field] = least, most
    if source.count * sizes["parts"][1] > REQUESTS_MAX:
        raise table.error(f"has more than {REQUESTS_MAX:,} parts", "count")

    def draw(field: str, count: int) -> tuple[int, ...]:
        least, most = sizes[field]
        return tuple(random.integers(least, most, count, endpoint=True).tolist())

    known = source.output_tokens is not None
    return tuple(
        Item(str(index), draw("tokens", parts), draw("output_tokens", parts) if known else None)
        for index, parts in enumerate(draw("parts", source.count))
    )


def _of_calls(calls: Calls, source: _TraceSource) -> tuple[Item, ...]:
    """A call of the trace as an item: its prompt, where it is kept, or the prompt's tokens."""
    chosen = np.ones(len(calls), dtype=bool)
    for kind, name, names, column in (
        ("model", source.model, calls.models, calls.model),
        ("function", source.function, calls.functions, calls.function),
    ):
        if name is not None:
            check_name(kind, name, names)
            chosen &= column == names.index(name)
    items = []
    for index in np.flatnonzero(chosen).tolist():
        text = calls.prompt[index] if calls.prompt is not None else None
        part: Part = int(calls.prompt_tokens[index]) if text is None else text
        items.append(Item(str(index), (part,), (int(calls.output_tokens[index]),)))
    return tuple(items)
