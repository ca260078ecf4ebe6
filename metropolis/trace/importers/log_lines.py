"""The lines of a log of calls: JSON objects, or CSV with a header."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from metropolis.names import cut
from metropolis.trace.importers.files import keys_once, read_text
from metropolis.trace.validate import check_slips
from metropolis.types import MetropolisError

Lines = Iterator[tuple[str, dict[str, Any]]]
"""The place and the fields of each call."""


def log_lines(path: Path, known: Sequence[str]) -> Lines:
    """The calls in a log.

    Raises MetropolisError where it is none, and for a field whose name resembles a `known` one.
    """
    text = read_text(path)
    if not text.strip():
        raise MetropolisError(f"{path}: is empty; it should have one call a line")
    if text.lstrip()[0] == "[":
        raise MetropolisError(f"{path}: is a JSON array; it should be one object a line, without [")
    is_json = text.lstrip()[0] == "{"
    return (_json_lines if is_json else _csv_lines)(text, path, known)


def _json_lines(text: str, path: Path, known: Sequence[str]) -> Lines:
    checked: set[str] = set()  # comparing an unknown name with the known ones takes long
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            fields = json.loads(line, object_pairs_hook=keys_once)
        except (ValueError, RecursionError) as error:
            why = f"{error}"
            if isinstance(error, json.JSONDecodeError):
                why = f"{error.msg} at column {error.colno}"
            raise MetropolisError(
                f"{place}: is not JSON ({why}); it should be one object a line"
            ) from None
        if not isinstance(fields, dict):
            raise MetropolisError(f"{place}: is {type(fields).__name__}; it should be an object")
        check_slips([name for name in fields if name not in checked], known, place)
        checked |= fields.keys()
        yield place, fields


def _csv_lines(text: str, path: Path, known: Sequence[str]) -> Lines:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader)
        _check_header(header, known, f"{path}, line 1")
        for row in reader:
            if not row:
                continue
            place = f"{path}, line {reader.line_num}"
            if len(row) != len(header):
                raise MetropolisError(
                    f"{place}: has {len(row)} fields; it should have {len(header)}, as the header"
                )
            yield place, {key: value for key, value in zip(header, row, strict=True) if value}
    except csv.Error as error:
        raise MetropolisError(
            f"{path}, line {reader.line_num}: is not CSV ({error}); it should be one call a line"
        ) from None


def _check_header(header: Sequence[str], known: Sequence[str], place: str) -> None:
    if len(header) == 1 and (other := re.search(r"[;\t|]", header[0])):
        raise MetropolisError(
            f"{place}: is separated by {other[0]!r}; it should be separated by commas"
        )
    check_slips(header, known, place)
    for field in ("step", "agent"):
        if field not in header:
            raise MetropolisError(
                f"{place}: the column {field} is missing; the file should be JSON lines or CSV with"
                " a header that has step and agent"
            )
    if twice := [field for field, count in Counter(header).items() if count > 1]:
        raise MetropolisError(
            f"{place}: has the column {cut(twice[0])} twice; each should be there once"
        )
