"""Types of Parquet columns in which a writer has seen nulls and empty lists only."""

from __future__ import annotations

import pyarrow as pa


def completed(found: pa.Schema, wanted: pa.Schema) -> pa.Schema:
    """`found` with the types of `wanted` in place of null: a column without a value has no type."""
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
    if pa.types.is_list(wanted):
        if pa.types.is_list(found):
            return pa.list_(_completed(found.value_type, wanted.value_type))
        if pa.types.is_large_list(found):
            return pa.large_list(_completed(found.value_type, wanted.value_type))
    return found
