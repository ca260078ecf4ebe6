"""The limit of open files of this process."""

from __future__ import annotations

import resource


def raise_limit() -> int | None:
    """Raise it as far as it may be raised, and return it; None: no limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return None if most == resource.RLIM_INFINITY else most
