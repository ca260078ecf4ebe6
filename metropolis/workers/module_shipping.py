"""Ships authors' own modules to processes that cannot import them.

Installed modules exist there already; modules in files outside a package do not.
"""

from __future__ import annotations

import site
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

_INSTALLED = {
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *map(Path, [*site.getsitepackages(), site.getusersitepackages()]),
}


class ImportedSources(MetaPathFinder, ExecutionLoader):
    """Imports modules from their sources: name -> (source, file).

    The files are paths on the driver's machine, for tracebacks.
    """

    def __init__(self, modules: Mapping[str, tuple[str, str]]) -> None:
        self._modules = modules

    def find_spec(self, fullname: str, *_about: Any) -> ModuleSpec | None:
        """See MetaPathFinder."""
        return spec_from_loader(fullname, self) if fullname in self._modules else None

    def get_source(self, fullname: str) -> str:
        """See InspectLoader."""
        return self._modules[fullname][0]

    def get_filename(self, fullname: str) -> str:
        """See ExecutionLoader."""
        return self._modules[fullname][1]

    def is_package(self, fullname: str) -> bool:
        """See InspectLoader."""
        return Path(self._modules[fullname][1]).stem == "__init__"


def sources_of(kinds: Iterable[type]) -> dict[str, tuple[str, str]]:
    """The uninstalled modules of `kinds`, and all loaded modules from their folders."""
    folders = {
        folder
        for kind in kinds
        if kind.__module__ != "__main__"
        and (folder := _folder_of(kind.__module__.partition(".")[0])) is not None
    }
    found = {}
    for name, module in list(sys.modules.items()):
        if name != "__main__" and _folder_of(name.partition(".")[0]) in folders:
            file = _file_of(module)
            if file is not None:
                found[name] = file.read_text("utf-8"), str(file)
    return found


def _folder_of(top: str) -> Path | None:
    """The folder of the top-level module or package `top`; None: installed, or without a file."""
    module = sys.modules.get(top)
    file = None if module is None else _file_of(module)
    if file is None or top == "metropolis":
        return None
    folder = file.parent.parent if hasattr(module, "__path__") else file.parent
    return None if folder in _INSTALLED else folder


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if file and file.endswith(".py") else None
