"""Plug-ins by name: built-in and third-party policies, dispatchers and reuse, by entry points.

A name may have options: `kairos:window=256`, `plas:quanta_s=1/2/4,beta=4`. Options are the
parameters of the plug-in's class that have a default; a value is parsed as the default's type, and
the items of a tuple are separated by slashes. Policies can be chained: `step+kairos` orders by
step, then by kairos. `FILE.py:CLASS` names a class in a Python file; it may have options as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from inspect import Parameter, unwrap
from typing import Any

from metropolis.names import cut, did_you_mean
from metropolis.policy.combined import Combined
from metropolis.types import MetropolisError
from metropolis.world.user_code import (
    file_of,
    load_function,
    load_installed,
    names_file,
    signature_of,
)

POLICIES = "metropolis.policies"
"""Entry points: name -> a Policy class, constructed without positional arguments."""
DISPATCHERS = "metropolis.dispatchers"
"""Entry points: name -> a Dispatcher class, constructed with a Fleet."""
REUSES = "metropolis.reuses"
"""Entry points: name -> a CacheReuse class, or a function that makes one, without positional
arguments."""

_ANY_NUMBER = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
METHODS = {
    POLICIES: (
        (
            *("rank", "reranked", "arrived", "started", "preempted", "promoted", "passed"),
            *("completed", "cancelled", "program_ended", "function_ended"),
        ),
        "is a metropolis.policy.base.Policy",
    ),
    DISPATCHERS: (
        (
            *("place", "completed", "cancelled", "lost", "preempted"),
            *("program_ended", "function_ended"),
        ),
        "is a metropolis.dispatch.base.Dispatcher",
    ),
    REUSES: (
        ("choose", "input_layers", "receivers", "check_models"),
        "is a metropolis.reuse.base.CacheReuse",
    ),
}
"""Group -> the methods that a class from a file must have, and the name of its base class in
messages."""


def names_of(group: str) -> list[str]:
    """The names of the installed plug-ins."""
    return sorted(point.name for point in entry_points(group=group))


def named(group: str, text: str) -> Callable[..., Any]:
    """A factory of the plug-in that `text` names, with its options.

    Raises MetropolisError on an unknown name or option.
    """
    if group == POLICIES and "+" in text:
        names = [part.partition(":")[0] for part in text.split("+")]
        if len(set(names)) < len(names):
            raise MetropolisError(f"{text!r} names a policy twice; each is to be named once")
        parts = [named(group, part) for part in text.split("+")]
        return partial(_made, text, lambda: Combined([make() for make in parts]))
    if names_file(text):
        name, colon, given, make = _in_file(group, text)
    else:
        name, colon, given = text.partition(":")
        make = _installed(group, name)
    required = [
        parameter.name
        for parameter in signature_of(make).parameters.values()
        if parameter.default is Parameter.empty and parameter.kind not in _ANY_NUMBER
    ]
    if group == DISPATCHERS:
        required = required[1:]  # a dispatcher gets its fleet
    if required:
        raise MetropolisError(
            f"{name}: the parameter {required[0]!r} of its constructor has no default; give it "
            "one: options are parameters with a default"
        )
    return partial(_made, name, make, **(_options(name, make, given) if colon else {}))


def _installed(group: str, name: str) -> Callable[..., Any]:
    for point in entry_points(group=group, name=name):
        return load_installed(point, METHODS[group][1])
    kind, known = group.rpartition(".")[2], names_of(group)
    raise MetropolisError(
        f"{name!r} is not among the {kind}{did_you_mean(name, known)}: {', '.join(known)}, and "
        "FILE.py:CLASS"
    )


def _in_file(group: str, text: str) -> tuple[str, str, str, Callable[..., Any]]:
    """FILE.py:CLASS, the colon before its options, the options, and its factory."""
    file, mark, rest = text.partition(".py:")
    class_name, colon, given = rest.partition(":")
    methods, about = METHODS[group]
    make = load_function(f"{file}{mark}{class_name}", about, kind="class")
    if not all(callable(getattr(unwrap(make), name, None)) for name in methods):
        raise MetropolisError(f"{file_of(text)}: {class_name} is not a class that {about}")
    return f"{file_of(text)}:{class_name}", colon, given, make


def _made(name: str, make: Callable[..., Any], *about: Any, **options: Any) -> Any:
    """Construct a plug-in; its errors are prefixed with its name."""
    try:
        made = make(*about, **options)
    except MetropolisError as error:
        raise MetropolisError(f"{name}: {error}") from error
    if about and not (hasattr(made, "fleet") and hasattr(made, "closed")):  # a dispatcher
        raise MetropolisError(
            f"{name}: the dispatcher has no fleet; its __init__ should call super().__init__(fleet)"
        )
    return made


def options_of(make: Callable[..., Any]) -> dict[str, Any]:
    """The options of a plug-in class, with their defaults."""
    return {
        parameter.name: parameter.default
        for parameter in signature_of(make).parameters.values()
        if parameter.default is not Parameter.empty
    }


def _options(name: str, make: Callable[..., Any], given: str) -> dict[str, Any]:
    defaults, found = options_of(make), {}
    for one in given.split(","):
        option, equals, value = one.partition("=")
        if not equals:
            raise MetropolisError(f"{name}: {one!r} is not an option; write {name}:option=value")
        if option not in defaults:
            known = ", ".join(defaults) or "none"
            raise MetropolisError(f"{name} has no option {option!r}; its options: {known}")
        if option in found:
            raise MetropolisError(f"{name}: option {option} is given twice; give it once")
        if not _can_be_given(defaults[option]):
            raise MetropolisError(
                f"{name}: option {option} has the default {cut(defaults[option])}; to be given as "
                "text, its default should be a number, a text, true, false, or a tuple of these"
            )
        try:
            found[option] = _like(defaults[option], value)
        except ValueError as error:
            raise MetropolisError(
                f"{name}: option {option} is {value!r}; write it like {_written(defaults[option])}"
            ) from error
    return found


def _can_be_given(default: Any) -> bool:
    items = default if type(default) is tuple and default else (default,)
    return all(type(item) in (bool, int, float, str) for item in items)


def _like(default: Any, value: str) -> Any:
    """`value` parsed as the type of `default`; raises ValueError when it cannot be."""
    if isinstance(default, tuple):
        return tuple(_like(default[0], item) for item in value.split("/"))
    if isinstance(default, bool):
        if value not in ("true", "false"):
            raise ValueError(value)
        return value == "true"
    return type(default)(value)


def _written(default: Any) -> str:
    if isinstance(default, tuple):
        return "/".join(map(_written, default))
    return str(default).lower() if isinstance(default, bool) else str(default)
