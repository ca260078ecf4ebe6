"""The first import of Ray in this process, under the variables that Ray reads only then."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray's variable that keeps nodes on other machines from joining, on every system."""
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
OWN = {**LOOPBACK, "RAY_AUTH_MODE": "token"}
"""The variables of a cluster of this machine, with a token."""
if not any(map(os.environ.get, TOKENS)):
    OWN["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # one per process: Ray caches it

_imported_for: Literal["own", "other"] | None = None


@contextmanager
def importing_ray(*, own: bool) -> Iterator[None]:
    """Import Ray here for a cluster that the run starts (`own`), or for another one."""
    global _imported_for
    if "ray" in sys.modules:
        yield
        return
    with environment(OWN if own else {}):
        yield
    _imported_for = "own" if own else "other"


def is_for(own: bool) -> bool:
    """Whether Ray, as imported, can start a cluster on loopback, or join any other cluster."""
    if _imported_for is None:  # by the user's code
        return not own or LOOPBACK.items() <= os.environ.items()
    return own == (_imported_for == "own")


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set `variables`, which the processes that Ray starts inherit."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
