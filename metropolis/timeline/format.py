"""The files of a timeline: schemas, names and metadata; docs/timeline-format.md specifies them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa

from metropolis.types import MetropolisError, Step

FORMAT, VERSION = "metropolis-timeline", 1
FOLDER = "timeline"
"""The name of a timeline's folder within the folder of a run or of a replay's lane."""
EXECUTIONS, CALLS = "executions", "calls"
METADATA_KEY = b"metropolis"
ROWS_MAX = 8192
"""The maximum number of rows of a batch."""
Clock = Literal["simulated", "real"]

SCHEMAS = {
    EXECUTIONS: pa.schema(
        [
            pa.field("step", pa.int32(), nullable=False),
            pa.field("agent", pa.int32(), nullable=False),
            pa.field("dispatched_s", pa.float64()),
            pa.field("committed_s", pa.float64()),
            pa.field("dispatched_wall_s", pa.float64()),
            pa.field("committed_wall_s", pa.float64()),
            pa.field("blocked_by", pa.int32()),
            pa.field("cluster", pa.int32(), nullable=False),
            pa.field("wasted", pa.int32(), nullable=False),
        ]
    ),
    CALLS: pa.schema(
        [
            pa.field("step", pa.int32(), nullable=False),
            pa.field("agent", pa.int32(), nullable=False),
            pa.field("number", pa.int32(), nullable=False),
            pa.field("function", pa.string(), nullable=False),
            pa.field("model", pa.string(), nullable=False),
            pa.field("instance", pa.int32()),
            pa.field("sent_s", pa.float64(), nullable=False),
            pa.field("started_s", pa.float64()),
            pa.field("completed_s", pa.float64()),
            pa.field("prompt_tokens", pa.int32(), nullable=False),
            pa.field("output_tokens", pa.int32(), nullable=False),
            pa.field("failed", pa.bool_(), nullable=False),
            pa.field("wasted", pa.bool_(), nullable=False),
        ]
    ),
}
"""Kind of file -> its columns."""
KEYS = {EXECUTIONS: ("step", "agent"), CALLS: ("step", "agent", "number")}
"""Kind of file -> the columns that identify a row."""


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a file: a JSON object in the schema's entry `metropolis`."""

    format: str = FORMAT
    version: int = VERSION
    clock: Clock
    """The clock of columns without `wall` in the name: simulated seconds, or real seconds since the
    start."""
    run: str
    """The id or name of the run."""
    agents: int
    number: int
    """The number of the writing process, from 0, as in the file's name."""
    first_step: Step | None = None
    """The rows of earlier files from this step on do not count: the run has repeated them."""


def schema_of(kind: str, meta: Meta) -> pa.Schema:
    """The schema of a new file."""
    return SCHEMAS[kind].with_metadata({METADATA_KEY: msgspec.json.encode(meta)})


def meta_of(schema: pa.Schema, path: Path, kind: str) -> Meta:
    """Read the metadata from the `schema` of the file `path`, of this `kind`.

    Raises MetropolisError if the file has another format.
    """
    try:
        found: dict[str, Any] = json.loads((schema.metadata or {})[METADATA_KEY])
        is_known = (found["format"], found["version"]) == (FORMAT, VERSION)
        if is_known and schema.equals(SCHEMAS[kind]):
            return msgspec.convert(found, Meta)
    except (KeyError, ValueError, TypeError):
        pass
    raise MetropolisError(
        f"{path}: is not of the format {FORMAT}, version {VERSION}; it should be the {kind} of a "
        "timeline"
    )


def files_of(folder: Path, kind: str) -> list[tuple[int, Path]]:
    """(number, path) of the files of `kind` in `folder`, by ascending number."""
    found = []
    for path in folder.glob(f"{kind}-*.arrows"):
        if match := re.fullmatch(rf"{kind}-(\d+)\.arrows", path.name):
            found.append((int(match[1]), path))
    return sorted(found)


def file_of(folder: Path, kind: str, number: int) -> Path:
    """The path of a file."""
    return folder / f"{kind}-{number}.arrows"
