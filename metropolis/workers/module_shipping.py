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
from importlib.util import decode_source, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from metropolis.types import MetropolisError

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


def sources_of(modules: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The sources of `modules` that are not installed, and of all loaded ones in their folders."""
    folders = {_folder_of(name) for name in modules if name != "__main__"} - {None}
    found = {}
    for name, module in list(sys.modules.items()):
        if name != "__main__" and _folder_of(name) in folders:
            file = _file_of(module)
            if file is not None:
                is_namespace = getattr(module, "__file__", None) is None
                found[name] = "" if is_namespace else decode_source(file.read_bytes()), str(file)
    return found


def not_importable(what: object) -> MetropolisError:
    """The error of an actor that cannot import `what`."""
    return MetropolisError(
        f"a worker on Ray cannot import what the run needs ({what}); install it on every node, or "
        "put it beside the world's file and import it at its top, so that it is sent along"
    )


def _folder_of(name: str) -> Path | None:
    """The folder of the top-level module or package of `name`.

    None: it is installed, or has no file.
    """
    top = name.partition(".")[0]
    module = sys.modules.get(top)
    file = None if module is None else _file_of(module)
    if file is None or top == "metropolis":
        return None
    folder = file.parent.parent if hasattr(module, "__path__") else file.parent
    return None if folder in _INSTALLED else folder


def _file_of(module: ModuleType) -> Path | None:
    """The file with the source of `module`; it does not exist for a namespace package."""
    file = getattr(module, "__file__", None)
    if file is None and (folders := [*getattr(module, "__path__", ())]):
        return Path(folders[0], "__init__.py")
    return Path(file) if file and file.endswith(".py") else None
