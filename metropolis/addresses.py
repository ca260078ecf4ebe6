"""Addresses that contain secrets: forms that are safe to store and to show in messages."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote, unquote_plus

HIDDEN = "***"
"""Placeholder for a secret in a stored address."""
_USER = re.compile(r"\A([^/]*://)([^/?#]*|[^/?#:@\[]*:(?!\d*(?:[/?#]|\Z)).*)@", re.DOTALL)
"""A password may contain the characters that end a host: a port or a password follows a colon."""
_QUERY = re.compile(
    r"(?<=[?&])(?!ssl_keyfile=)([^=&#?]*(?:key|token|secret|password|sig)[^=&#?]*)=[^&#]+",
    re.IGNORECASE,
)
_PASSWORD = re.compile(r"(?<=[?&])password=[^&#]*&?")
_TLS_FILE = re.compile(r"(?<=[?&])(ssl_(?:ca_certs|ca_path|certfile|keyfile))=([^&#]+)")


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


def with_absolute_files(address: str) -> str:
    """`address` of a store with absolute paths of the files and folders for TLS.

    Other processes, such as workers on Ray, run in other folders.
    """
    return _TLS_FILE.sub(_absolute, address)


def _absolute(option: re.Match[str]) -> str:
    path = Path(unquote_plus(option[2]))
    return option[0] if path.is_absolute() else f"{option[1]}={quote(str(path.absolute()))}"


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
