"""Access control of the viewer's server: a token, the Host header, and headers of its answers.

The page and its scripts need no token; data and commands do. The token is in the fragment of the
URL, which browsers do not send.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from ipaddress import ip_address

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
"""Headers of every answer."""


class Access:
    """Checks requests to a server that listens at `host`."""

    def __init__(self, host: str) -> None:
        self._host = host.lower()
        self.token = secrets.token_urlsafe(24)

    def knows(self, authorization: str | None) -> bool:
        """Whether the header contains the token; takes equally long for every wrong one."""
        given = (authorization or "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, f"Bearer {self.token}".encode())

    def accepts_host(self, header: str | None) -> bool:
        """Whether a Host header is an address, localhost, or the host of this server.

        Another site's name may resolve to this machine (DNS rebinding), an address cannot.
        """
        name = (header or "").lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") <= 1:
            name = name.partition(":")[0]
        if name in ("localhost", self._host):
            return bool(name)
        try:
            ip_address(name)
        except ValueError:
            return False
        return True
