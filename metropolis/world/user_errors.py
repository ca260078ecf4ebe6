"""Errors raised by the code of worlds and agents, as a sentence that names a line of that code."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from inspect import getsourcefile, getsourcelines, iscoroutine
from pathlib import Path
from sysconfig import get_path
from traceback import walk_tb

from metropolis.types import MetropolisError

Line = tuple[str, int]
"""A file, and a line in it."""


def own_line(lines: Iterable[Line], owner: object) -> str:
    """The last of `lines` that is in the folder of the class of `owner`.

    If there is none, the last line outside Python's library and metropolis. If there is none
    either, the engine could not call the method of the class: then the line that defines the class.
    """
    lines = list(lines)
    kind = type(getattr(owner, "watched", owner))
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    folder = Path(file).parent if file else None
    own = [line for line in lines if Path(line[0]).parent == folder]
    found = own or [line for line in lines if not _is_engine(line[0])] or _definition(kind) or lines
    return ":".join(map(str, found[-1])) if found else "?"


def _definition(kind: type) -> list[Line]:
    try:
        file, (_, line) = getsourcefile(kind), getsourcelines(kind)
    except (OSError, TypeError):  # the object has no source file
        return []
    return [(file, line)] if file else []


def describe_error(error: BaseException, owner: object) -> str:
    """A sentence with `error` and its line in the code of `owner`, a world or an agent.

    Without an owner, lines of Python's library and of metropolis are skipped.
    """
    group, error = error, first_error(error)
    traceback = error.__traceback__ or group.__traceback__
    lines = [(frame.f_code.co_filename, line) for frame, line in walk_tb(traceback)]
    what = " ".join(f"{type(error).__name__}: {text_of(error)}".split()).removesuffix(":")
    if owner is None:
        lines = [line for line in lines if not _is_engine(line[0])]
        if not lines:
            return what
    where = own_line(lines, owner)
    if isinstance(error, MetropolisError):
        return f"{where}: {error}"
    if isinstance(error, AttributeError) and iscoroutine(error.obj):
        error.obj.close()  # Python would warn of it as well
        return f"{where}: {what}; write await before the call, with the call in parentheses"
    return f"{where}: {what}; fix it there"


def text_of(error: BaseException) -> str:
    """The text of `error`, whose class may be an author's."""
    try:
        return f"{error}"
    except Exception as failure:  # noqa: BLE001 -- an author's method may raise anything
        return f"its __str__ raises {type(failure).__name__}"


def _is_engine(file: str) -> bool:
    path = Path(file)
    if "site-packages" in path.parts:  # may be below the standard library's folder
        return False
    return file[:1] == "<" or any(path.is_relative_to(folder) for folder in _ENGINE)


_ENGINE = Path(__file__).parent.parent, Path(get_path("stdlib"))


class _Explanation(str):
    """An exception note that explains the error in one sentence."""


def explain(error: BaseException, sentence: str) -> None:
    """Add `sentence` to an error as a note, unless it already has an explanation."""
    if explanation_of(error) is None:
        error.add_note(_Explanation(sentence))


def explanation_of(error: BaseException) -> str | None:
    """The sentence that `explain` added to `error`."""
    notes = getattr(error, "__notes__", ())
    return next((note for note in notes if isinstance(note, _Explanation)), None)


def explained(error: BaseException) -> str:
    """The explanation of `error`, or its type and text."""
    kind = "" if isinstance(error, MetropolisError) else f"{type(error).__name__}: "
    return explanation_of(error) or kind + text_of(error)


def single_error(failure: BaseException) -> BaseException:
    """The first error of a task group's failure if all are MetropolisErrors, else `failure`."""
    if not isinstance(failure, BaseExceptionGroup):
        return failure
    failures = [single_error(inner) for inner in failure.exceptions]
    users = all(isinstance(inner, MetropolisError) for inner in failures)
    return failures[0] if users else failure


def first_error(error: BaseException) -> BaseException:
    """The first error of a group that is not a MetropolisError, otherwise the first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [first_error(inner) for inner in error.exceptions]
    return next((leaf for leaf in leaves if not isinstance(leaf, MetropolisError)), leaves[0])
