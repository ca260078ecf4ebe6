"""The versions of a world by cell, for the memory store; the counterpart of common.lua."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from metropolis.store.encoding import Said, Write
from metropolis.types import Step


class Versions:
    """All versions of entities that a step may still read, and the events."""

    def __init__(self) -> None:
        self._versions: dict[str, list[tuple[Step, Write]]] = {}
        self._cells: dict[str, dict[str, int]] = defaultdict(dict)
        self._stale: dict[str, Step] = {}
        """Entity -> the step below which a part of it can be dropped."""
        self._events: dict[Step, dict[str, list[bytes]]] = {}

    def commit(self, since: Step, writes: Iterable[Write], events: Iterable[Said]) -> None:
        """Add what steps from `since` on see, and what `since` perceives."""
        for write in writes:
            versions = self._versions.setdefault(write.name, [])
            versions.append((since, write))
            if len(versions) > 1 or not write.body:
                self._stale.setdefault(write.name, since)
            if write.body:
                names = self._cells[write.cell]
                names[write.name] = names.get(write.name, 0) + 1
        for said in events:
            self._events.setdefault(since, {}).setdefault(said.cell, []).append(said.line)

    def around(self, cells: Iterable[str], step: Step, last: Step) -> list[tuple[Step, str, bytes]]:
        """(since, name, body) of all that the steps from `step` to `last` may see in `cells`.

        May contain more. An empty body: the entity is gone.
        """
        names = {name for cell in cells for name in self._cells.get(cell, ())}
        later = [
            (since, name, write.body)
            for name in names
            for since, write in self._versions[name]
            if step < since <= last
        ]
        return self._seen(names, step) + later

    def everything(self, step: Step) -> list[tuple[Step, str, bytes]]:
        """(since, name, body) of everything that `step` sees, by name."""
        return self._seen(sorted(self._versions), step)

    def _seen(self, names: Iterable[str], step: Step) -> list[tuple[Step, str, bytes]]:
        seen = []
        for name in names:
            for since, write in reversed(self._versions[name]):
                if since <= step:
                    if write.body:
                        seen.append((since, name, write.body))
                    break
        return seen

    def events(self, step: Step, last: Step, cells: Sequence[str] | None = None) -> list[bytes]:
        """The lines that `step` to `last` perceive in `cells`; None: everywhere."""
        return [
            line
            for by_cell in (self._events.get(each, {}) for each in range(step, last + 1))
            for cell in (by_cell if cells is None else cells)
            for line in by_cell.get(cell, ())
        ]

    def release(self, before: Step, below: Step) -> None:
        """Drop what only steps below `below` need; `before`: `below` of the previous call."""
        for name in [name for name, since in self._stale.items() if since <= below]:
            self._release(name, below)
        for step in range(before, below):
            self._events.pop(step, None)

    def _release(self, name: str, below: Step) -> None:
        versions = self._versions[name]
        while len(versions) > 1 and versions[1][0] <= below:
            self._forget(versions.pop(0)[1])
        del self._stale[name]
        if len(versions) > 1:
            self._stale[name] = versions[1][0]
        elif not versions[0][1].body:
            del self._versions[name]

    def _forget(self, write: Write) -> None:
        if not write.body:
            return
        names = self._cells[write.cell]
        names[write.name] -= 1
        if not names[write.name]:
            del names[write.name]
        if not names:
            del self._cells[write.cell]

    def size_bytes(self) -> int:
        """Total size of the stored names, bodies and lines."""
        return sum(
            len(name) + len(write.body)
            for name, versions in self._versions.items()
            for _, write in versions
        ) + sum(
            len(line)
            for cells in self._events.values()
            for lines in cells.values()
            for line in lines
        )
