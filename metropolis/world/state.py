"""A world's state; each value carries the step that wrote it (see docs/architecture.md).

A value written by step s is visible to steps above s. A reader at step s sees the newest version
written below s, however far other agents have run ahead. `collect` drops versions below the floor,
which no agent can read, and removed entities.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from operator import itemgetter

from metropolis.rules.metrics import Metric
from metropolis.types import MetropolisError, Position, Step
from metropolis.world.cells import Cell, Cells, neighbours
from metropolis.world.entities import Entity, Event

Version = tuple[Step, Entity | None]
"""The first step to which this version is visible, and the entity; None: removed."""
Area = tuple[Position, float]
"""(centre, radius)"""
EMPTY_CELLS_MAX = 100
"""How many empty cells are kept for a few entities."""
_Numbered = tuple[int, Event]
"""A sequence number, which increases for each source, and the event."""


class State:
    """The entities and events of a world, with a spatial index."""

    def __init__(
        self, metric: Metric, radius: float, entities: Iterable[Entity], step: Step = 0
    ) -> None:
        """`entities` exist at the beginning of `step`; `radius` is the usual search radius."""
        self.metric, self.first_step = metric, step
        self._grid = Cells(metric, radius)
        self._versions: dict[str, list[Version]] = {}
        self._cells: dict[Cell, dict[str, int]] = defaultdict(dict)
        """Cell -> entities with a version there, and the number of these; some cells are empty."""
        self._around: dict[Cell, list[dict[str, int]]] = {}
        """Cell -> the values of `_cells` for it and its neighbours."""
        self._stale: dict[Step, list[str]] = {}
        """Step -> entities with versions that can be dropped once the floor reaches it."""
        self._events: dict[Step, dict[Cell, list[_Numbered]]] = {}
        self._emitted = 0
        for entity in entities:
            if entity.name in self._versions:
                raise MetropolisError(f"two entities are named {entity.name!r}; names are unique")
            self._add(entity.name, (step, entity))

    def version(self, name: str, step: Step) -> Version | None:
        """The version of `name` visible to `step`; None: it never existed."""
        for version in reversed(self._versions.get(name, ())):
            if version[0] <= step:
                return version
        return None

    def entity(self, name: str, step: Step) -> Entity | None:
        """The entity `name` as visible to `step`; None: it does not exist."""
        version = self.version(name, step)
        return version[1] if version else None

    def near(self, position: Position, radius: float, step: Step) -> dict[str, Version]:
        """Name -> version of what `step` perceives within `radius` of `position`, in no order."""
        found: dict[str, Version] = {}
        perceives, versions = self.metric.perceives, self._versions
        for names in self._names_near(position, radius):
            for name in names:
                if name in found:
                    continue
                for version in reversed(versions[name]):
                    since, entity = version
                    if since <= step:
                        if entity is not None and perceives(position, entity.position, radius):
                            found[name] = version
                        break
        return found

    def _names_near(self, position: Position, radius: float) -> Iterable[Iterable[str]]:
        """The entities with a version within `radius`, possibly more, by cell."""
        grid, cells = self._grid, self._cells
        if radius > grid.neighbours_radius:
            return [cells.get(cell, ()) for cell in grid.near(position, radius, cells)]
        cell = grid.of(position)
        around = self._around.get(cell)
        if around is None:
            around = self._around[cell] = [cells[one] for one in neighbours(cell)]
        return around

    def events(self, position: Position, radius: float, step: Step) -> list[Event]:
        """The events of step `step - 1` perceived from `position`, ordered by source."""
        cells = self._events.get(step)
        if cells is None:
            return []
        return _in_order(
            (number, event)
            for cell in self._grid.near(position, radius, cells)
            for number, event in cells.get(cell, ())
            if self.metric.perceives(position, event.position, radius)
        )

    def around(
        self, areas: Sequence[Area], step: Step, last: Step
    ) -> tuple[list[tuple[Step, str, Entity | None]], list[Event]]:
        """All that the steps from `step` to `last` may read in `areas`, or more.

        The versions are (since, name, entity), None: the entity is gone; the events are in order.
        """
        versions = []
        names = {name for cell in self._cells_of(areas, self._cells) for name in self._cells[cell]}
        for name in names:
            for since, entity in reversed(self._versions[name]):
                if since <= last and (since > step or entity is not None):
                    versions.append((since, name, entity))
                if since <= step:
                    break
        events: list[Event] = []
        for each in range(step, last + 1):
            cells = self._events.get(each, {})
            events += _in_order(one for cell in self._cells_of(areas, cells) for one in cells[cell])
        return versions, events

    def _cells_of(self, areas: Sequence[Area], known: Mapping[Cell, object]) -> set[Cell]:
        near = {cell for area in areas for cell in self._grid.near(*area, known)}
        return near & known.keys()

    def commit(
        self, step: Step, writes: Mapping[str, Entity | None], events: Iterable[Event]
    ) -> None:
        """Store a cluster's writes and events of `step`."""
        for name, entity in writes.items():
            versions = self._versions.get(name)
            if versions and versions[-1][0] > step:
                raise AssertionError(f"{name} was already written by a step above {step}")
            if versions or entity is None:
                self._stale.setdefault(step + 1, []).append(name)
            self._add(name, (step + 1, entity))
        self.restore_events(events)

    def retract(self, step: Step, names: Iterable[str], sources: Container[str]) -> None:
        """Undo a commit of `step`: drop its versions of `names`, and the events of `sources`."""
        for name in names:
            versions = self._versions[name]
            (at,) = (i for i, (since, _) in enumerate(versions) if since == step + 1)
            self._unindex(name, versions.pop(at))
            if not versions:
                del self._versions[name]
        cells = self._events.get(step + 1, {})
        for cell, numbered in list(cells.items()):
            cells[cell] = [one for one in numbered if one[1].source not in sources]
            if not cells[cell]:
                del cells[cell]

    def collect(self, floor: Step) -> None:
        """Drop all versions and events that only steps below `floor` could read."""
        for step in [step for step in self._events if step < floor]:
            del self._events[step]
        for since in [since for since in self._stale if since <= floor]:
            for name in self._stale.pop(since):
                self._collect(name, floor)
        if len(self._cells) > EMPTY_CELLS_MAX + 9 * len(self._versions):
            self._around.clear()
            for cell in [cell for cell, names in self._cells.items() if not names]:
                del self._cells[cell]

    def _collect(self, name: str, floor: Step) -> None:
        versions = self._versions.get(name, [])
        while len(versions) > 1 and versions[1][0] <= floor:
            self._unindex(name, versions.pop(0))
        if len(versions) == 1 and versions[0][1] is None and versions[0][0] <= floor:
            del self._versions[name]

    def at(self, step: Step) -> tuple[list[Entity], list[Event]]:
        """Everything visible to `step`, ordered by name: the world between two steps."""
        entities = (self.entity(name, step) for name in sorted(self._versions))
        cells = self._events.get(step, {})
        events = _in_order(numbered for cell in cells.values() for numbered in cell)
        return [entity for entity in entities if entity], events

    def restore_events(self, events: Iterable[Event]) -> None:
        """Add events; each is perceived in the step after its own."""
        for event in events:
            cells = self._events.setdefault(event.step + 1, {})
            cells.setdefault(self._grid.of(event.position), []).append((self._emitted, event))
            self._emitted += 1

    def put(self, step: Step, writes: Mapping[str, Entity | None], events: Iterable[Event]) -> None:
        """Like `commit`, but in any order of steps: for predictions, which `retract` removes."""
        for name, entity in writes.items():
            self._stale.setdefault(step + 1, []).append(name)
            self._add(name, (step + 1, entity))
        self.restore_events(events)

    def _add(self, name: str, version: Version) -> None:
        versions = self._versions.setdefault(name, [])
        if not versions or versions[-1][0] < version[0]:
            versions.append(version)
        else:
            insort(versions, version, key=itemgetter(0))
        if version[1] is not None:
            names = self._cells[self._grid.of(version[1].position)]
            names[name] = names.get(name, 0) + 1

    def _unindex(self, name: str, version: Version) -> None:
        if version[1] is None:
            return
        cell = self._grid.of(version[1].position)
        names = self._cells[cell]
        names[name] -= 1
        if not names[name]:
            del names[name]


def _in_order(numbered: Iterable[_Numbered]) -> list[Event]:
    """Order events by source, then by order of emission."""
    return [event for _, event in sorted(numbered, key=lambda item: (item[1].source, item[0]))]
