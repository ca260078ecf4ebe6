"""Checks of what a client is given."""

from __future__ import annotations

from typing import Any

from metropolis.llm.model_choice import ModelChoice
from metropolis.llm.usage import Prices
from metropolis.names import cut
from metropolis.types import MetropolisError
from metropolis.world.checks import check_number, seed_of, whole_number

METHODS_OF_BACKENDS = ("check", "complete", "stream", "close")
METHODS_OF_JOURNALS = ("get", "answers", "put", "lose", "flush", "close")
LEAST_COUNTS = {
    "concurrency": 1,
    "retries": 0,
    "requests_per_minute": 1,
    "tokens_per_minute": 1,
    "max_tokens": 0,
}
OPTIONAL = ("requests_per_minute", "tokens_per_minute", "max_tokens", "max_cost")


def backend_flaw(backend: Any) -> str | None:
    """Return what `backend` is instead of a backend; None if it is a backend."""
    missing = _missing(backend, METHODS_OF_BACKENDS)
    if not missing:
        return None
    given = "a text" if isinstance(backend, str) else cut(backend)  # it may contain a password
    if 0 < len(missing) < len(METHODS_OF_BACKENDS):
        given += f", without the method {missing[0]} of a backend"
    return given


def check_arguments(backend: Any, journal: Any, **given: Any) -> None:
    """Raise MetropolisError on an invalid argument of `Client`; `given` are the others by name."""
    if flaw := backend_flaw(backend):
        raise MetropolisError(
            f"the backend is {flaw}; it should be a backend such as metropolis.llm.connect.connect "
            "returns for a URL"
        )
    if journal is not None and _missing(journal, METHODS_OF_JOURNALS):
        raise MetropolisError(
            f"journal is {cut(journal)}; it should be a metropolis.llm.journal.Journal, or None"
        )
    given = {
        name: value for name, value in given.items() if value is not None or name not in OPTIONAL
    }
    for name, least in LEAST_COUNTS.items():
        if name in given:
            whole_number(name, given[name], least)
    for name in ("patience_s", "max_cost", "timeout_s"):
        if name in given:
            check_number(name, given[name])
    if not given["timeout_s"]:
        raise MetropolisError(f"timeout_s is {given['timeout_s']}; it should be above 0")
    for name, kind in ("prices", Prices), ("models", ModelChoice):
        if not isinstance(given[name], kind | None):
            right = f"{kind.__module__}.{kind.__name__}"
            raise MetropolisError(f"{name} is {cut(given[name])}; it should be a {right}, or None")
    if "max_cost" in given and given["prices"] is None:
        raise MetropolisError("max_cost needs prices: give the price of a million tokens")
    seed_of(given["seed"])


def _missing(given: Any, methods: tuple[str, ...]) -> list[str]:
    """The `methods` that `given` lacks; a class, not yet an object, lacks them all."""
    if isinstance(given, type):
        return [*methods]
    return [one for one in methods if not callable(getattr(given, one, None))]
