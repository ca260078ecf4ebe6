"""Validates the arguments of `Simulation` before a run has any effects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from typing import Any

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Backend
from metropolis.llm.client import Client
from metropolis.types import MetropolisError
from metropolis.world.base import World
from metropolis.world.checks import check_number, check_seed

METHODS_OF_BACKENDS = ("check", "complete", "stream", "close")


def client_of(llm: Any, world: World) -> Client:
    """Return `llm` if it is a client, or a new client of this backend; None: the world's author.

    Raises MetropolisError on anything else.
    """
    if isinstance(llm, Client):
        return llm
    backend: Backend = Scripted(world.author) if llm is None else llm
    has_methods = all(callable(getattr(llm, name, None)) for name in METHODS_OF_BACKENDS)
    if llm is not None and (isinstance(llm, type) or not has_methods):
        given = "a text" if isinstance(llm, str) else f"{llm!r:.80}"  # it may contain a password
        raise MetropolisError(
            f"llm is {given}; it should be a metropolis.Client, a backend such as "
            "metropolis.llm.connect.connect makes of a URL, or None"
        )
    return Client(backend)


def check_arguments(
    seed: Any,
    out: Any,
    resume: Any,
    store: Any,
    options: Any,
    about: Any,
    **seconds: Any,
) -> None:
    """Raise MetropolisError on a wrong type or value; `seconds` are durations, 0 or more."""
    check_seed(seed)
    if out is not None and (not isinstance(out, str | PathLike) or out == ""):
        raise MetropolisError(f"out is {out!r:.80}; it should be the path of a folder, or None")
    if resume and out is None:
        raise MetropolisError("resume needs out, the folder of the run to go on with")
    if not isinstance(store, str | None):
        raise MetropolisError(
            f"store is {store!r:.80}; it should be memory, embedded or a URL, as text, or None"
        )
    for name, value in (("options", options), ("about", about)):
        if not isinstance(value, Mapping | None):
            raise MetropolisError(f"{name} is {value!r:.80}; it should be a dictionary, or None")
    for name, value in seconds.items():
        check_number(name, value)
    _check_plain(about or {})


def _check_plain(about: Mapping[Any, Any]) -> None:
    for key, value in about.items():
        if not isinstance(key, str):
            raise MetropolisError(f"about has the key {key!r:.80}; its keys should be texts")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise MetropolisError(
                f"about[{key!r}] is {value!r:.80}; it should be plain data, which run.json can "
                "keep: texts, finite numbers, booleans, None, lists and dictionaries"
            ) from None
