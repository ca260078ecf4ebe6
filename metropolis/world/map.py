"""A grid map: walls and named areas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class GridMap:
    """Tiles of a walled grid world; arrays are (height, width), tile (x, y) is `[y, x]`."""

    name: str
    walls: npt.NDArray[np.bool_]
    arenas: npt.NDArray[np.int32]
    """Index into `arena_names`; 0 is everything outside any arena, and its name is ``""``."""
    arena_names: tuple[str, ...]
    """`sector: arena`; perception ends at an arena's border."""
    objects: npt.NDArray[np.int32]
    """Index into `object_names`; 0 is none, and its name is ``""``."""
    object_names: tuple[str, ...]

    @property
    def width(self) -> int:
        """Tiles from west to east."""
        return int(self.walls.shape[1])

    @property
    def height(self) -> int:
        """Tiles from north to south."""
        return int(self.walls.shape[0])
