"""Addresses that contain secrets: forms that are safe to store and to show in messages."""

from __future__ import annotations

import re

HIDDEN = "***"
"""Placeholder for a secret in a stored address."""
_USER = re.compile(r"\A([^/]*://)([^/?#]*|[^/?#:@\[]*:(?!\d*(?:[/?#]|\Z)).*)@", re.DOTALL)
"""A password may contain the characters that end a host: a port or a password follows a colon."""
_QUERY = re.compile(
    r"(?<=[?&])(?!ssl_keyfile=)([^=&#?]*(?:key|token|secret|password|sig)[^=&#?]*)=[^&#]+",
    re.IGNORECASE,
)
_PASSWORD = re.compile(r"(?<=[?&])password=[^&#]*&?")


def without_secrets(address: str) -> str:
    """`address` with user, password, and keys of the query replaced by HIDDEN.

    A store's address keeps the user and drops the password, which METROPOLIS_STORE_PASSWORD gives.
    """
    is_store = address.startswith(("redis://", "rediss://", "unix://"))
    user = _without_password if is_store else rf"\1{HIDDEN}@"
    bare = _USER.sub(user, address)
    if is_store:
        bare = _PASSWORD.sub("", bare).rstrip("?&")
    return _QUERY.sub(rf"\1={HIDDEN}", bare)


def _without_password(user: re.Match[str]) -> str:
    name = user[2].partition(":")[0]
    return f"{user[1]}{name}@" if name else user[1]


def shown(address: str) -> str:
    """`address`, which may be malformed, without possible users, passwords and options."""
    kind, mark, place = address.partition("://")
    if not mark:
        kind, place = "", address
    if kind != "unix" or not place.startswith("/"):  # a socket's path may contain an @
        user, at, place = place.rpartition("@")
        if at and ("?" in user or "#" in user):  # ambiguous: part of a password or of an option
            return f"{kind}{mark}{HIDDEN}"
    return f"{kind}{mark}{re.split('[?#]', place)[0]}"
