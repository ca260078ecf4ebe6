"""Which instances serve which models."""

from __future__ import annotations

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
        self.of = [frozenset(each.models) if each.models else None for each in fleet.instances]
        """By instance; None: it serves requests for any model."""
        self.all = frozenset(range(len(fleet)))
        """All instances."""
        self._ever_listed: set[str] = set()
        self._index()

    def set(self, instance: int, models: frozenset[str] | None) -> None:
        """`instance` serves `models`; None: any."""
        self.of[instance] = models
        self._index()

    def serving(self, model: str | None) -> frozenset[int]:
        """The instances that serve `model`, maybe none; None: any model."""
        if model is None:
            return self.all
        listing = (self._serving.get(name) for name in _names(model))
        return next((found for found in listing if found), self._unlisted)

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

    def _index(self) -> None:
        self.listed = frozenset[str]().union(*(names for names in self.of if names is not None))
        """All names that instances list."""
        self._ever_listed |= self.listed
        self._unlisted = self._those(None)
        self._serving = {name: self._those(name) for name in self.listed}

    def _those(self, name: str | None) -> frozenset[int]:
        """The instances that list `name` or nothing; those that serve all requests are `all`."""
        found = frozenset(i for i, names in enumerate(self.of) if names is None or name in names)
        return self.all if found == self.all else found


def _names(model: str) -> tuple[str, str]:
    """The names by which an instance may list `model`."""
    return model, model.rpartition(":")[0]
