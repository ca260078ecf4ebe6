"""The tile at which a resident carries out an activity.

As in the code of Park et al. (2023), up to four tiles of the object are drawn, those with nobody on
them are preferred, and the nearest is taken. There a resident knows who stands on any tile of the
town; here it knows only those in sight, so it chooses again when it sees that its tile is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metropolis.worlds.smallville.geography import Tile
from metropolis.worlds.smallville.world import Observation

if TYPE_CHECKING:
    from metropolis.worlds.smallville.resident import Resident

DRAWN = 4


def target(me: Resident, observation: Observation, tiles: Sequence[Tile]) -> Tile:
    """The nearest of the free ones among some `tiles`; the resident's own tile if none is reached.

    Tiles out of sight count as free.
    """
    here = (observation.x, observation.y)
    drawn = me.random.sample(tiles, min(DRAWN, len(tiles)))
    taken = {(seen.x, seen.y) for seen in observation.nearby}
    walks = [me.atlas.walk(here, tile) for tile in drawn if tile not in taken]
    walks = [walk for walk in walks if walk] or [me.atlas.walk(here, tile) for tile in drawn]
    walks = [walk for walk in walks if walk]
    return min(walks, key=len)[-1] if walks else here


def give_way(me: Resident, observation: Observation) -> None:
    """Choose another tile of the same object if somebody stands on the one to walk to."""
    activity, here = me.activity, (observation.x, observation.y)
    taken = {(seen.x, seen.y) for seen in observation.nearby}
    if here == activity.goal or activity.goal not in taken or activity.asleep:
        return
    place = f"{activity.place}: {activity.thing}" if activity.thing else activity.place
    free = [tile for tile in me.atlas.tiles(place) if tile not in taken]
    if free:
        activity.goal = target(me, observation, free)
