"""Conversion of what agents show to and from one Parquet column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from metropolis.names import cut
from metropolis.trace.shown import Shown
from metropolis.trace.validate import Place
from metropolis.types import MetropolisError
from metropolis.world.appearance import Look

_LINE = pa.struct([pa.field("speaker", pa.string()), pa.field("text", pa.string())])
SHOWS = pa.field(
    "shows",
    pa.struct(
        [
            pa.field("label", pa.string()),
            pa.field("emoji", pa.string()),
            pa.field("place", pa.string()),
            pa.field("lines", pa.list_(_LINE)),
        ]
    ),
)
"""The column of a trace that knows what agents do and say."""


def shows_column(shown: Sequence[Shown], steps: int, agents: int) -> pa.Array:
    """One value per (step, agent); null: as at the step before."""
    rows: list[dict[str, Any] | None] = [None] * (steps * agents)
    for change in shown:
        look = change.look
        rows[change.step * agents + change.agent] = {
            "label": look.label,
            "emoji": look.emoji,
            "place": look.place,
            "lines": [{"speaker": who, "text": text} for who, text in change.lines],
        }
    return pa.array(rows, SHOWS.type)


def read_shows(column: pa.Array, agents: int, place: Place) -> tuple[Shown, ...]:
    """The inverse of `shows_column`; missing texts are empty.

    Raises `MetropolisError` that names the row.
    """
    shown = []
    for row in pc.indices_nonzero(column.is_valid()).to_pylist():
        step, agent = divmod(row, agents)
        content = column[row].as_py()
        lines = []
        for line in content.get("lines") or ():
            if line is None or line["speaker"] is None or line["text"] is None:
                raise MetropolisError(
                    f"{place(step, agent)}: shows.lines holds {cut(line)}; it should hold a "
                    "speaker and a text"
                )
            lines.append((line["speaker"], line["text"]))
        label, emoji, where = (content.get(name) or "" for name in ("label", "emoji", "place"))
        look = Look(label, emoji, where)
        shown.append(Shown(step, agent, look, tuple(lines)))
    return tuple(shown)
