"""The types of a trace's columns in Parquet, as a writer may have chosen them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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

    def check(
        name: str, kind: pa.DataType | None, fits: Callable[[pa.DataType], bool], right: str
    ) -> None:
        if kind is None:
            raise MetropolisError(f"{path}: the column {name} is missing; it should be {right}")
        if not fits(kind):
            found = shorten(f"{kind}", 80, placeholder=" …")
            raise MetropolisError(f"{path}, column {name}: is {found}; it should be {right}")

    for name in ("step", "agent"):
        check(name, _kind_of(schema, name), pa.types.is_integer, "int32")
    for name in ("x", "y"):
        check(name, _kind_of(schema, name), _is_number, "float32")
    check_slips(schema.names, (DEPENDS_ON.name, SHOWS.name), f"{path}, columns")
    for field in (DEPENDS_ON, SHOWS):
        if field.name in schema.names:
            fits = partial(_fits, wanted=field.type)
            check(field.name, _kind_of(schema, field.name), fits, f"{field.type}, or absent")
    check("calls", _kind_of(schema, "calls"), _is_list_of_structs, f"list<{CALL_TYPE}>")
    calls = schema.field("calls").type.value_type
    check_slips(_names(calls), _names(CALL_TYPE), f"{path}, calls")
    for field in CALL_TYPE:
        kind = _kind_of(calls, field.name)
        if kind is not None or field.name in CALL_FIELDS_REQUIRED:
            fits = partial(_fits, wanted=field.type)
            check(f"calls.{field.name}", kind, fits, f"{field.type}")


def _kind_of(fields: pa.Schema | pa.StructType, name: str) -> pa.DataType | None:
    """The type of a field; None if it is absent, or there twice."""
    index = fields.get_field_index(name)
    return None if index < 0 else fields.field(index).type


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type can be read as those of the other."""
    if pa.types.is_list(wanted):
        return _is_list(found) and _holds(found.value_type, wanted.value_type)
    if pa.types.is_struct(wanted):
        return pa.types.is_struct(found) and all(field in list(wanted) for field in found)
    return _is_text(found) if pa.types.is_string(wanted) else bool(pa.types.is_integer(found))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _is_list_of_structs(kind: pa.DataType) -> bool:
    return _is_list(kind) and bool(pa.types.is_struct(kind.value_type))


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
