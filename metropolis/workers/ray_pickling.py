"""Pickles classes of a script, a notebook, or another module without a file by value.

Workers on Ray cannot import them.
"""

from __future__ import annotations

import io
import re
import sys
from importlib.util import find_spec
from inspect import get_annotations
from types import FunctionType, ModuleType
from typing import Any

import ray.cloudpickle

from metropolis.types import MetropolisError
from metropolis.workers.optimistic.remote_host import HostSpec
from metropolis.workers.worker_spec import WorkerSpec

_CACHE = "__msgspec_cache__"
"""Attribute of dataclasses that msgspec has read; it cannot be pickled."""

loads = ray.cloudpickle.loads


class _Pickler(ray.cloudpickle.CloudPickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: set[str] = set()
        """Those that it has pickled, and those of functions and classes."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType):
            self.modules.add(obj.__name__)
        elif isinstance(obj, type | FunctionType) and isinstance(obj.__module__, str):
            self.modules.add(obj.__module__)
        if not isinstance(obj, type) or _CACHE not in vars(obj):
            return super().reducer_override(obj)
        cache = vars(obj)[_CACHE]
        delattr(obj, _CACHE)
        try:
            return super().reducer_override(obj)
        finally:
            setattr(obj, _CACHE, cache)


def dumps(value: Any) -> bytes:
    """`value`, pickled for `loads` in another process."""
    return _pickled(value)[0]


def _pickled(value: Any) -> tuple[bytes, set[str]]:
    """`value`, pickled, and its modules and those of its functions and classes."""
    with io.BytesIO() as file:
        pickler = _Pickler(file)
        pickler.dump(value)
        return file.getvalue(), pickler.modules


def pickled_spec(spec: WorkerSpec | HostSpec) -> tuple[bytes, set[str]]:
    """`spec` for `unpickled_spec`, and the modules that this needs.

    Raises MetropolisError if it cannot be pickled.
    """
    named = {}
    for name in {kind.__module__ for kind in {type(spec.world), *map(type, spec.agents)}}:
        if name == "__main__" or find_spec(name) is None:
            module = sys.modules[name]
            ray.cloudpickle.register_pickle_by_value(module)
            named[name] = _named_in_annotations(module)
    try:
        return _pickled((named, spec))
    except Exception as error:  # an author's object may raise anything
        raise MetropolisError(
            f"the world {spec.world.name!r}, its agents and the llm cannot be sent to workers "
            f"({error}); they should hold plain data before the run begins"
        ) from error


def unpickled_spec(pickled: bytes) -> Any:
    """The inverse of `pickled_spec`, in another process."""
    named, spec = loads(pickled)
    for name, values in named.items():
        known = vars(sys.modules.setdefault(name, ModuleType(name)))
        known.update(values | known)
    return spec


def _named_in_annotations(module: ModuleType) -> dict[str, Any]:
    """What annotations of the module's classes name.

    Those that are texts are evaluated in the module, which another process lacks.
    """
    kinds = [value for value in vars(module).values() if isinstance(value, type)]
    hints = [str(hint) for kind in kinds for hint in _annotations(kind).values()]
    words = re.findall(r"\w+", " ".join(hints))
    return {word: vars(module)[word] for word in words if word in vars(module)}


def _annotations(kind: type) -> dict[str, Any]:
    """Those of `kind` itself, also if they name what only type checkers import."""
    if sys.version_info >= (3, 14):  # Python evaluates annotations when they are needed
        from annotationlib import Format

        return get_annotations(kind, format=Format.STRING)
    return get_annotations(kind)
