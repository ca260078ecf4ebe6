"""Options of a world: further keyword parameters of the function that makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from inspect import Parameter
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import msgspec

from metropolis.names import cut, did_you_mean
from metropolis.types import MetropolisError
from metropolis.world.user_code import definition_of, signature_of

_OWN = ("agents", "seed")
"""Parameters that every world has."""
EXAMPLES = {datetime: "2023-02-13T06:00:00"}
"""Type -> a text of this type, where it is not obvious."""
_BY_NAME = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def parse_options(texts: Sequence[str]) -> dict[str, str]:
    """Name -> value of options NAME=VALUE. Raises MetropolisError on another form."""
    options: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise MetropolisError(f"--world-option is {text!r}; it should be NAME=VALUE")
        if name in options:
            raise MetropolisError(f"--world-option names {name!r} twice")
        options[name] = value
    return options


def keyword_arguments(
    maker: Callable[..., Any], world: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The `options` as arguments of `maker`, texts converted to the types of its parameters.

    Raises MetropolisError if `maker` lacks one or needs another, or a text cannot be converted.
    """
    try:
        parameters = signature_of(maker).parameters
    except (TypeError, ValueError):  # the call will tell
        return dict(options)
    known = [name for name, one in parameters.items() if one.kind in _BY_NAME and name not in _OWN]
    for name in known:
        is_needed = parameters[name].default is Parameter.empty and name not in options
        if is_needed and parameters.keys() >= {*_OWN}:
            raise MetropolisError(
                f"the world {world!r} needs its option {name!r}; give it with --world-option "
                f"{name}=VALUE, in Python among the options of make_scenario or the world_options "
                "of check_world"
            )
    arguments = {}
    for name, value in options.items():
        if name not in known:
            has = f"; it has {', '.join(known)}" if known else "; it has none"
            raise MetropolisError(
                f"the world {world!r} has no option {name!r}{did_you_mean(name, known)}{has}"
            )
        kind = _type_of(parameters[name], maker, world)
        try:
            arguments[name] = msgspec.convert(value, kind, strict=False)
        except (msgspec.ValidationError, TypeError) as error:
            examples = (EXAMPLES.get(one) for one in (kind, *get_args(kind)))
            right = next((f", such as {example}" for example in examples if example), "")
            raise MetropolisError(
                f"the world {world!r}: its option {name!r} is {cut(value)}; it should be of type "
                f"{kind.__name__ if isinstance(kind, type) else kind}{right} ({error})"
            ) from None
    return arguments


def _type_of(parameter: Parameter, maker: Callable[..., Any], world: str) -> Any:
    """The type that `parameter` is annotated with; no other annotation is evaluated."""
    if parameter.annotation is Parameter.empty:
        return Any
    annotated = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        names = vars(import_module(definition_of(maker).__module__))
        return get_type_hints(annotated, names, include_extras=True)[parameter.name]
    except Exception as error:  # user code
        raise MetropolisError(
            f"the world {world!r}: the types of its options cannot be read ({error})"
        ) from error
