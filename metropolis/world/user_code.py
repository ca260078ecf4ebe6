"""Functions and classes from a user's Python file, named as FILE.py:NAME."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Signature, getfile, isclass, isroutine, signature
from pathlib import Path
from sysconfig import get_path
from traceback import extract_tb
from typing import Any

from metropolis.durable import reachable
from metropolis.types import MetropolisError
from metropolis.world.saving import resolve_types
from metropolis.world.user_errors import describe_error

_INSTALLED = [get_path("purelib"), get_path("platlib")]


def _is_installed(name: str, path: Path) -> bool:
    """Whether an installed module other than `path` has this name."""
    found = PathFinder.find_spec(name, _INSTALLED)
    if found is None or found.loader is None or found.origin is None:
        return False
    return Path(found.origin).resolve() != path.resolve()


def names_file(reference: str) -> bool:
    """Whether `reference` is FILE.py or FILE.py:NAME."""
    return reference.endswith(".py") or ".py:" in reference


def file_of(reference: str) -> Path:
    """The file that FILE.py or FILE.py:NAME names."""
    return Path(reference.partition(".py:")[0].removesuffix(".py") + ".py")


def load_function(
    reference: str, does: str, *, default: str = "", kind: str = "function"
) -> Callable[..., Any]:
    """Load the function that `reference`, FILE.py:NAME, names; NAME may be omitted if `default` is
    given.

    `does` describes it in error messages; `kind` is what it should be there, like "class".
    Raises MetropolisError when it does not exist. The result raises it on any error in the file.
    """
    path, name = file_of(reference), reference.partition(".py:")[2] or default
    if not name:
        raise MetropolisError(f"{reference} names no {kind}; write {path}:{kind.upper()}")
    if not reachable(path).is_file():
        raise MetropolisError(f"there is no file {path}; name one with a {kind} {name}")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    assert spec.origin is not None
    file = spec.origin
    if path.stem in sys.stdlib_module_names or _is_installed(path.stem, path):
        raise MetropolisError(
            f"{path} has the name of an installed module, which it would replace; rename the file"
        )
    module = module_from_spec(spec)
    if path.stem in sys.modules:
        resolve_types(sys.modules[path.stem])
    sys.modules[path.stem] = module  # get_type_hints looks up the agents' field types there
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.insert(0, folder)  # the file may import its neighbours
    try:
        with _errors_with_lines(file):
            spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(path.stem, None)
        raise
    found = getattr(module, name, None)
    if not callable(found):
        raise MetropolisError(f"{path} has no {kind} {name}; it should have one that {does}")

    return _explained(found, file, f"{path}: {name}", does)


def load_installed(point: EntryPoint, does: str) -> Callable[..., Any]:
    """Load the function or class of an entry point, which `does` describes in error messages.

    Raises MetropolisError on any error in its package, and so does the result.
    """
    what = f"the entry point {point.name} = {point.value!r}"
    try:
        found = point.load()
    except (Exception, SystemExit) as error:
        raise MetropolisError(f"{what}: {describe_error(error, None)}") from error
    if not callable(found):
        raise MetropolisError(f"{what} is not a function; it should name one that {does}")
    return _explained(found, getfile(definition_of(found)), what, does)


def _explained(found: Callable[..., Any], file: str, name: str, does: str) -> Callable[..., Any]:
    """`found`, with its errors as sentences: wrong parameters, or a line in `file`."""

    @wraps(found)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            signature_of(found).bind(*args, **kwargs)
        except (TypeError, ValueError) as error:
            raise MetropolisError(f"{name}: {error}; it should be one that {does}") from None
        with _errors_with_lines(file):
            return found(*args, **kwargs)

    return called


def definition_of(function: Callable[..., Any]) -> Any:
    """The function or class behind a wrapper, a partial function, or another callable object."""
    while isinstance(function, partial) or hasattr(function, "__wrapped__"):
        function = function.func if isinstance(function, partial) else function.__wrapped__
    return function if isroutine(function) or isclass(function) else type(function)


def signature_of(function: Callable[..., Any]) -> Signature:
    """Its signature, also if annotations name what only type checkers import."""
    if sys.version_info >= (3, 14):  # Python evaluates annotations when they are needed
        from annotationlib import Format

        return signature(function, annotation_format=Format.FORWARDREF)
    return signature(function)


@contextmanager
def _errors_with_lines(file: str) -> Iterator[None]:
    """Turn an error in the user's `file` into a sentence that names its innermost line there."""
    try:
        yield
    except MetropolisError:
        raise
    except (Exception, SystemExit) as error:
        where = file
        if isinstance(error, SyntaxError) and error.filename is not None:
            where = f"{error.filename}:{error.lineno}"
        raise MetropolisError(
            describe_error_in(file, error) or _describe_error_at(where, error)
        ) from error


def describe_error_in(file: str, error: BaseException) -> str | None:
    """`error` as a sentence with its innermost line in `file`; None: it did not pass through it."""
    if isinstance(error, SyntaxError):
        return None
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == file]
    return _describe_error_at(f"{file}:{lines[-1]}", error) if lines else None


def _describe_error_at(where: str, error: BaseException) -> str:
    what = error.msg if isinstance(error, SyntaxError) else str(error)
    sentence = " ".join(f"{type(error).__name__}: {what}".split())
    return f"{where}: {sentence.removesuffix(':')}; fix it there"
