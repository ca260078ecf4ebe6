"""metropolis runs societies of LLM agents out of order, with a history equal to lockstep's."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {
    "Agent": "metropolis.world.base",
    "Entity": "metropolis.world.entities",
    "Event": "metropolis.world.entities",
    "Client": "metropolis.llm.client",
    "MetropolisError": "metropolis.types",
    "Scenario": "metropolis.world.scenario",
    "Simulation": "metropolis.runtime.simulation",
    "Transaction": "metropolis.world.transaction",
    "View": "metropolis.world.view",
    "World": "metropolis.world.base",
}
"""Name -> the module it lives in; imported when it is asked for, so that `import` stays quick."""

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC]
