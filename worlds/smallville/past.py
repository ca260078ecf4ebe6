"""What residents bring from an earlier simulation, and its file in a town's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from metropolis.types import MetropolisError
from metropolis.worlds.smallville.geography import Tile
from metropolis.worlds.smallville.memory import Node
from metropolis.worlds.smallville.state import Activity, Day
from metropolis.worlds.smallville.world import Doing

PASTS = "pasts.json"


@dataclass(frozen=True, kw_only=True)
class Past:
    """The past of one resident.

    Times are seconds since the midnight before step 0; earlier times are negative.
    """

    memories: tuple[Node, ...] = ()
    """The resident's memories in order of creation."""
    talked: Mapping[str, int] = field(default_factory=dict)
    """Name -> the time of the last conversation with that resident."""
    places: tuple[str, ...] = ()
    """Places known besides those of the profile: `sector: arena`, whose objects are not known, or
    `sector: arena: object`."""
    unreflected: int | None = None
    """The importance that is missing until the resident reflects; None: the whole threshold."""
    day: Day | None = None
    """The plan of the day of step 0; None: the resident plans it at the first step."""
    activity: Activity | None = None
    doing: Doing | None = None
    """The visible activity at step 0; None: the resident is asleep."""
    at: Tile | None = None
    """The tile at step 0; None: the tile of the profile."""


def read_pasts(path: Path) -> dict[str, Past]:
    """Name -> past of the residents in the file `path`; empty if there is no file.

    Raises MetropolisError naming the file.
    """
    try:
        pasts = msgspec.json.decode(path.read_bytes(), type=dict[str, Past])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise MetropolisError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise MetropolisError(
            f"{path}: {error}; it should hold what `metropolis world import-genagent` wrote"
        ) from None
    for name, past in pasts.items():
        for place in (place for node in past.memories for place in node.evidence):
            if not 0 <= place < len(past.memories):
                raise MetropolisError(
                    f"{path}: {name} has {len(past.memories)} memories, and evidence of number "
                    f"{place}; it should be from 0 to {len(past.memories) - 1}"
                )
    return pasts
