"""Addresses with secrets in them: as they may be written down, and as sentences may show them."""

from __future__ import annotations

import re

HIDDEN = "***"
"""Stands for a secret in an address that was written down."""
_USER = re.compile(r"\A([^/]*://)([^/?#]*|[^/?#:@\[]*:(?!\d*(?:[/?#]|\Z)).*)@", re.DOTALL)
"""A password may hold what ends a place: after a colon there is a port or a password."""
_QUERY = re.compile(
    r"(?<=[?&])([^=&#?]*(?:key|token|secret|password|sig)[^=&#?]*)=[^&#]+", re.IGNORECASE
)


def without_secrets(address: str) -> str:
    """`address` with HIDDEN in the place of user, password, and keys in a query.

    Of a store the user stays and the password goes: METROPOLIS_STORE_PASSWORD gives it again.
    """
    is_store = address.startswith(("redis://", "rediss://", "unix://"))
    user = _without_password if is_store else rf"\1{HIDDEN}@"
    bare = _USER.sub(user, address)
    return _QUERY.sub(rf"\1={HIDDEN}", bare)


def _without_password(user: re.Match[str]) -> str:
    name = user[2].partition(":")[0]
    return f"{user[1]}{name}@" if name else user[1]


def shown(address: str) -> str:
    """`address`, which may be none, without what may be a user, a password or options."""
    kind, mark, place = address.partition("://")
    if not mark:
        kind, place = "", address
    if kind != "unix" or not place.startswith("/"):  # whose paths may hold an @
        user, at, place = place.rpartition("@")
        if at and ("?" in user or "#" in user):  # part of a password, or of an option?
            return f"{kind}{mark}{HIDDEN}"
    return f"{kind}{mark}{re.split('[?#]', place)[0]}"
