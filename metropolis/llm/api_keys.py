"""Keys for servers, from environment variables."""

from __future__ import annotations

import os

from metropolis.types import MetropolisError


def is_word(key: str) -> bool:
    """Whether `key` has only printable ASCII characters, no space, and at least one."""
    return key.isascii() and key.isprintable() and key != "" and " " not in key


def api_key(variable: str) -> str | None:
    """The key in an environment variable; None: it is unset or empty.

    Raises MetropolisError on other characters, which no header can contain.
    """
    key = os.environ.get(variable)
    if not key:
        return None
    if not is_word(key):
        raise MetropolisError(
            f"{variable}: write a key of printable ASCII characters without spaces"
        )
    return key


def without(key: str | None, text: str) -> str:
    """`text` with `key`, which a server may repeat, hidden."""
    return text if key is None else text.replace(key, "…")
