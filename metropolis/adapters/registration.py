"""The worlds' ids for `gymnasium.make`.

Gymnasium has no entry points for plug-ins since 1.0: a package registers its environments when it
is imported. To keep `import metropolis` fast, this waits until Gymnasium is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

IDS = {
    "metropolis/Minimal-v0": "minimal",
    "metropolis/Social-v0": "social",
    "metropolis/SmallVille-v0": "smallville",
    "metropolis/LargeVille-v0": "largeville",
    "metropolis/City-v0": "city",
}
"""Gymnasium's id -> the world's name. ``metropolis/World-v0`` takes the name as `world`."""


def register() -> None:
    """Register the worlds now if Gymnasium is imported already, otherwise on its import."""
    if "gymnasium" in sys.modules:
        _register(sys.modules["gymnasium"])
    elif not any(isinstance(finder, _ImportHook) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ImportHook())


def _register(gymnasium: ModuleType) -> None:
    entry_point = "metropolis.adapters.single:SingleAgentWorld"
    gymnasium.register("metropolis/World-v0", entry_point=entry_point)
    for name, world in IDS.items():
        gymnasium.register(name, entry_point=entry_point, kwargs={"world": world})


class _ImportHook(MetaPathFinder):
    """Finds Gymnasium by the other finders, and registers the worlds when it is loaded.

    It stays until then: a program may look for Gymnasium before it is imported.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_register(module: ModuleType) -> None:
            load(module)
            sys.meta_path.remove(self)
            _register(module)

        loader: Any = spec.loader
        loader.exec_module = load_and_register
        return spec
