"""How residents perceive, remember and reflect: the paper's values, or those of its code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from metropolis.types import MetropolisError

_Positive = Annotated[int, Meta(ge=1)]
_Weight = Annotated[float, Meta(ge=0)]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One resident's settings; the defaults are the preset `paper` (Park et al. 2023)."""

    vision_tiles: Annotated[int, Meta(ge=0, le=64)] = 4
    """Half the side of the square that the resident perceives, within its room."""
    attention_bandwidth: _Positive = 3
    """Maximum number of events perceived in a step, the nearest first, including the resident's
    own."""
    retention: _Positive = 5
    """Number of events remembered last; an event equal to one of them is not new."""
    idle_objects: bool = True
    """Whether unused objects are perceived; their importance is 1, without a call."""
    rerates: bool = False
    """Whether the importance of a text is rated again each time; False: the rating is reused."""
    recency: Literal["hours", "rank"] = "hours"
    """The unit of the decay of recency (`memory.py`): hours since the last retrieval, or ranks."""
    recency_decay: Annotated[float, Meta(gt=0, le=1)] = 0.995
    """Factor of recency per unit of `recency`."""
    recency_weight: _Weight = 1.0
    importance_weight: _Weight = 1.0
    relevance_weight: _Weight = 1.0
    reflection_threshold: _Positive = 150
    """The sum of importance after which the resident reflects."""


PRESETS: Mapping[str, Settings] = {
    "paper": Settings(),
    "code-1.0": Settings(
        rerates=True,
        recency="rank",
        recency_decay=0.99,
        recency_weight=0.5,
        importance_weight=2.0,
        relevance_weight=3.0,
    ),
}
"""The settings of Park et al. 2023, and those of the published code with its default values."""

EXPORTED_SETTINGS = "metropolis_settings"
"""Field of an exported `scratch.json` with all settings: the published code has not all of them."""
EXPORTED_WORKPLACE = "metropolis_workplace"
"""Field of an exported `scratch.json` with the sector: the published code has it in sentences."""


def settings_of(table: Mapping[str, Any]) -> Settings:
    """The settings of a table with a `preset` (default: `paper`) and fields that differ from it.

    Raises MetropolisError naming the field.
    """
    name = table.get("preset", "paper")
    if not isinstance(name, str) or name not in PRESETS:
        raise MetropolisError(
            f"the preset of settings is {name!r}; it should be {' or '.join(PRESETS)}"
        )
    fields = asdict(PRESETS[name])
    for field in table:
        if field not in fields and field != "preset":
            raise MetropolisError(
                f"settings have a field {field!r}; the fields are preset, {', '.join(fields)}"
            )
    changed = {field: value for field, value in table.items() if field != "preset"}
    try:
        return msgspec.convert(fields | changed, Settings)
    except msgspec.ValidationError as error:
        raise MetropolisError(f"settings: {error}") from None


def table_of(settings: Settings) -> dict[str, Any]:
    """The shortest table that `settings_of` reads as `settings`; empty for the preset `paper`."""
    own, tables = asdict(settings), []
    for name, preset in PRESETS.items():
        theirs = asdict(preset)
        named = {} if name == "paper" else {"preset": name}
        tables.append(named | {field: own[field] for field in own if own[field] != theirs[field]})
    return min(tables, key=len)
