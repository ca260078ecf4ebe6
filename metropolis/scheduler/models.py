"""Which instances serve which models."""

from __future__ import annotations

from metropolis.dispatch.base import Fleet
from metropolis.types import MetropolisError


class ServedModels:
    """The models of each instance of a fleet, initially those of its specifications."""

    def __init__(self, fleet: Fleet) -> None:
        self.of = [frozenset(each.models) if each.models else None for each in fleet.instances]
        """By instance; None: it serves requests for any model."""
        self.all = frozenset(range(len(fleet)))
        """All instances."""
        self._serving: dict[str | None, frozenset[int]] = {}
        """Results of `serving`."""

    def set(self, instance: int, models: frozenset[str] | None) -> None:
        """`instance` serves `models`; None: any."""
        self.of[instance] = models
        self._serving.clear()

    def serving(self, model: str | None) -> frozenset[int]:
        """The instances that serve `model`; None: any model.

        Raises MetropolisError if none does.
        """
        if model not in self._serving:
            serving = frozenset(
                index
                for index, names in enumerate(self.of)
                if model is None or names is None or model in names
            )
            if not serving:
                known = ", ".join(sorted({name for names in self.of for name in names or ()}))
                raise MetropolisError(f"no instance serves the model {model!r}; they serve {known}")
            self._serving[model] = self.all if serving == self.all else serving
        return self._serving[model]

    def others(self, instance: int) -> list[int]:
        """The other instances that serve a model of `instance`."""
        of, mine = self.of, self.of[instance]
        return [
            index
            for index, names in enumerate(of)
            if index != instance and (names is None or mine is None or names & mine)
        ]
