"""Which instances serve which models."""

from __future__ import annotations

from collections.abc import Set

from metropolis.dispatch.base import Fleet
from metropolis.types import MetropolisError


class UnservedModelError(MetropolisError):
    """No instance serves the model of a request."""


class ServedModels:
    """The models of each instance of a fleet, initially those of its specifications.

    An instance that lists NAME also serves NAME:ADAPTER, unless one lists that; an instance that
    lists nothing serves every model, as far as is known.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.of: list[frozenset[str] | None] = [None] * len(fleet)
        """By instance; None: it serves requests for any model."""
        self.all = frozenset(range(len(fleet)))
        """All instances."""
        self._ever_listed: set[str] = set()
        self._listing: dict[str, set[int]] = {}
        """The instances that list each name."""
        self._serving: dict[str | None, frozenset[int]] = {}
        """Results of `serving` since the latest `set`; by listed name, None: an unlisted one."""
        for instance, each in enumerate(fleet.instances):
            self.set(instance, frozenset(each.models) if each.models else None)

    @property
    def listed(self) -> Set[str]:
        """All names that instances list."""
        return self._listing.keys()

    def set(self, instance: int, models: frozenset[str] | None) -> None:
        """`instance` serves `models`; None: any."""
        before, self.of[instance] = self.of[instance], models
        for name in before or ():
            self._listing[name].remove(instance)
            if not self._listing[name]:
                del self._listing[name]
        for name in models or ():
            self._listing.setdefault(name, set()).add(instance)
        self._ever_listed |= models or set()
        self._serving = {}

    def serving(self, model: str | None) -> frozenset[int]:
        """The instances that serve `model`, maybe none; None: any model."""
        if model is None:
            return self.all
        listed = next((name for name in _names(model) if name in self._listing), None)
        if listed not in self._serving:
            unlisted = (instance for instance, names in enumerate(self.of) if names is None)
            listing = () if listed is None else self._listing[listed]
            found = frozenset((*listing, *unlisted))
            self._serving[listed] = self.all if found == self.all else found
        return self._serving[listed]

    def may_return(self, model: str | None) -> bool:
        """Whether an instance has ever listed `model`: it may do so again."""
        return model is None or not self._ever_listed.isdisjoint(_names(model))

    def unserved(self, model: str | None) -> UnservedModelError:
        """The error of a request for `model`, which no instance serves."""
        known = ", ".join(sorted(self.listed))
        return UnservedModelError(f"no instance serves the model {model!r}; they serve {known}")

    def others(self, instance: int) -> list[int]:
        """The other instances that serve a model of `instance`."""
        of, mine = self.of, self.of[instance]
        return [
            index
            for index, names in enumerate(of)
            if index != instance and (names is None or mine is None or names & mine)
        ]


def _names(model: str) -> tuple[str, str]:
    """The names by which an instance may list `model`."""
    return model, model.rpartition(":")[0]
