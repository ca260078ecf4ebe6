"""The laws of the city: those of SmallVille, and trains."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

from metropolis.maps.map import GridMap
from metropolis.world.transaction import Member, Transaction
from metropolis.worlds.city.terrain import SEATS, Railway, Tile
from metropolis.worlds.smallville.past import Past
from metropolis.worlds.smallville.profile import Profile
from metropolis.worlds.smallville.world import START, SmallVille


class City(SmallVille):
    """Towns with a road and a railway.

    A carriage moves its passengers by one tile in each step, the world's velocity, whether they
    talk or not. A resident gets in from a platform when its seat passes, and out onto any platform.
    """

    name = "city"

    def __init__(
        self,
        grid: GridMap,
        residents: Sequence[Profile],
        *,
        start: datetime = START,
        pasts: Mapping[str, Past] = MappingProxyType({}),
    ) -> None:
        super().__init__(grid, residents, start=start, pasts=pasts)
        self.railway = Railway()
        self._seats = {one.name: number % SEATS for number, one in enumerate(residents)}

    def resolve(self, cluster: Transaction) -> Awaitable[None] | None:
        """See `SmallVille.resolve`; afterwards carriages move."""
        talks = super().resolve(cluster)
        if talks is not None:
            return self._carry_after(talks, cluster)
        self._carry(cluster)
        return None

    async def _carry_after(self, talks: Awaitable[None], cluster: Transaction) -> None:
        await talks
        self._carry(cluster)

    def _carry(self, cluster: Transaction) -> None:
        """Move the passengers who have not got out."""
        for member in cluster:
            direction = self.railway.direction(member.position)
            body = cluster.writes.get(member.name)
            if not direction or (body is not None and body.position != member.position):
                continue
            x, y = int(member.position[0]) + direction, int(member.position[1])
            if super()._may_enter(member, (x, y)):  # no passenger walks beyond the end of the line
                member.move((x, y))

    def _may_enter(self, member: Member, tile: Tile) -> bool:
        """See `SmallVille._may_enter`."""
        if not super()._may_enter(member, tile):
            return False
        if self.railway.direction(member.position):
            return not self.railway.direction(tile)
        if not self.railway.direction(tile):
            return True
        return self.railway.seat(tile, member.step + 1) == self._seats[member.name]
