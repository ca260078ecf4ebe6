"""The types of a trace's columns in Parquet, as a writer may have chosen them."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import Any

import pyarrow as pa

from metropolis.trace.call_columns import CALL_FIELDS_REQUIRED, CALL_TYPE
from metropolis.trace.dependency_columns import DEPENDS_ON
from metropolis.trace.shown_column import SHOWS
from metropolis.trace.validate import check_slips
from metropolis.types import MetropolisError


def completed(found: pa.Schema, wanted: pa.Schema) -> pa.Schema:
    """`found` with the types of `wanted` in place of null, which is that of no value at all."""
    return pa.schema(
        [
            field.with_type(_completed(field.type, wanted.field(field.name).type))
            if field.name in wanted.names
            else field
            for field in found
        ]
    )


def _completed(found: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    if pa.types.is_null(found):
        return wanted
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        return pa.struct(list(completed(pa.schema(list(found)), pa.schema(list(wanted)))))
    if _is_list(found) and _is_list(wanted):
        value = _completed(found.value_type, wanted.value_type)
        if value != found.value_type:
            return pa.list_(value)
    return found


def check_types(schema: pa.Schema, path: Path) -> None:
    """Check the columns' types; wider ones than in `SCHEMA` and absent optional fields are fine."""

    def check(name: str, kind: pa.DataType | None, fits: bool, right: str) -> None:
        if kind is None:
            raise MetropolisError(f"{path}: the column {name} is missing; it should be {right}")
        if not fits:
            found = shorten(f"{kind}", 80, placeholder=" …")
            raise MetropolisError(f"{path}, column {name}: is {found}; it should be {right}")

    def kind_of(fields: pa.Schema | pa.StructType, name: str) -> pa.DataType | None:
        indices = fields.get_all_field_indices(name)
        return fields.field(indices[0]).type if len(indices) == 1 else None

    for name in ("step", "agent"):
        kind = kind_of(schema, name)
        check(name, kind, kind is not None and pa.types.is_integer(kind), "int32")
    for name in ("x", "y"):
        kind = kind_of(schema, name)
        number = kind is not None and (pa.types.is_floating(kind) or pa.types.is_integer(kind))
        check(name, kind, number, "float32")
    kind = kind_of(schema, DEPENDS_ON.name)
    if DEPENDS_ON.name in schema.names:
        fits = (
            kind is not None
            and _is_list(kind)
            and _holds(kind.value_type, DEPENDS_ON.type.value_type)
        )
        check(DEPENDS_ON.name, kind, fits, f"{DEPENDS_ON.type}, or absent")
    kind = kind_of(schema, SHOWS.name)
    if SHOWS.name in schema.names:
        fits = (
            kind is not None
            and pa.types.is_struct(kind)
            and all(field in list(SHOWS.type) for field in kind)
        )
        check(SHOWS.name, kind, fits, f"{SHOWS.type}, or absent")
    kind = kind_of(schema, "calls")
    structs = kind is not None and _is_list(kind) and pa.types.is_struct(kind.value_type)
    check("calls", kind, structs, f"list<{CALL_TYPE}>")
    assert kind is not None
    check_slips(_names(kind.value_type), _names(CALL_TYPE), f"{path}, calls")
    for field in CALL_TYPE:
        found = kind_of(kind.value_type, field.name)
        if found is None and field.name not in CALL_FIELDS_REQUIRED:
            continue
        if pa.types.is_list(field.type):
            fits = (
                found is not None
                and _is_list(found)
                and _holds(found.value_type, field.type.value_type)
            )
        else:
            is_right = _is_text if pa.types.is_string(field.type) else pa.types.is_integer
            fits = found is not None and is_right(found)
        check(f"calls.{field.name}", found, fits, str(field.type))


def _is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _names(struct: pa.StructType) -> list[str]:
    return [field.name for field in struct]


def _holds(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a list's values are integers, or structs of integers, as `wanted`."""
    if not pa.types.is_struct(wanted):
        return bool(pa.types.is_integer(found))
    return (
        pa.types.is_struct(found)
        and sorted(_names(found)) == sorted(_names(wanted))
        and all(pa.types.is_integer(field.type) for field in found)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
