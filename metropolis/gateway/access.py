"""Access control: by a request's Host header, the web page it comes from, and its key.

1. A web page whose domain resolves to this machine (DNS rebinding) sends that domain as host: only
   addresses and known names are accepted.
2. Browsers send the origin of a page with every POST. A page that is not allowed is refused,
   whatever its content type; one that is allowed gets the headers that let it read the answer.
   Resources that a page embeds, such as images, have no origin: Sec-Fetch-Site reveals them.
3. With a key file, a client's key is not forwarded to engines.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from typing import Protocol
from urllib.parse import urlsplit

from metropolis.gateway.keys import Keys
from metropolis.types import MetropolisError

LOOPBACK_NAMES = ("localhost",)
ANY = "*"
_HOST = re.compile(r"[^\s/@?#]+")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#]+/?")
OTHER_SITES = ("cross-site", "same-site")
CREDENTIALS = frozenset(("authorization", "x-api-key", "api-key", "cookie"))
"""Headers of OpenAI's, Anthropic's and Azure's clients that contain keys."""
PREFLIGHT_S = 600
REDACTED_LENGTH_MIN = 7
"""Minimum length of a redacted word in a key's header; shorter words, like Bearer, are no keys."""


class Headers(Protocol):
    """The headers of a request; names are case-insensitive."""

    def get(self, key: str, default: str, /) -> str:
        """Return the first value of `key`."""

    def getall(self, key: str, default: tuple[str, ...], /) -> Iterable[str]:
        """Return all values of `key`."""


class AccessError(MetropolisError):
    """The request is refused for `reason` with HTTP `status`."""

    def __init__(self, reason: str, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.reason, self.status = reason, status


class Access:
    """Accepts requests to `hosts`, from no web page or from `origins`, with one of `keys`."""

    def __init__(
        self, hosts: Iterable[str] = (), origins: Iterable[str] = (), keys: Keys | None = None
    ) -> None:
        """Raises MetropolisError on what no request can have as its host or origin."""
        hosts, origins = list(hosts), list(origins)
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise MetropolisError(f"the host {host!r} is no name or address, as chat.example")
        for origin in origins:
            if origin not in (ANY, "null") and not _ORIGIN.fullmatch(origin):
                raise MetropolisError(
                    f"the origin {origin!r} should be like https://chat.example, or be {ANY}"
                )
        self._hosts = {name.lower() for name in (*LOOPBACK_NAMES, *hosts)}
        self._origins = {origin.lower().rstrip("/") for origin in origins}
        self.keys = keys

    def check(self, headers: Headers) -> None:
        """Raises AccessError on a host or origin that is not allowed."""
        hosts = [*headers.getall("Host", ())]
        if len(hosts) > 1:
            raise AccessError("host", 400, "the request has several Host headers")
        if hosts and not self._is_host(hosts[0]):
            raise AccessError(
                "host", 403,
                "the host of the request is not allowed; use an address, or start the gateway "
                "with --allow-host",
            )  # fmt: skip
        origin = headers.get("Origin", "")
        is_of_page = origin or headers.get("Sec-Fetch-Site", "").strip().lower() in OTHER_SITES
        if is_of_page and not self._is_origin(origin):
            raise AccessError(
                "origin", 403,
                "web pages of this origin may not use the gateway; start it with --allow-origin",
            )  # fmt: skip

    def tenant(self, headers: Headers) -> str:
        """Return the owner of the request's key, empty without a key file; raises AccessError."""
        if self.keys is None:
            return ""
        keys = [*headers.getall("X-Api-Key", ()), *headers.getall("Api-Key", ())]
        for value in headers.getall("Authorization", ()):
            scheme, _, key = value.partition(" ")
            if scheme.lower() == "bearer":
                keys.append(key.strip())
        if not keys:
            sentence = "no API key; send one in the header Authorization: Bearer KEY"
            raise AccessError("key", 401, sentence)
        tenant = self.keys.tenant_of(keys)
        if tenant is None:
            raise AccessError("key", 401, "the API key is unknown to this gateway")
        return tenant

    def is_forwarded(self, name: str) -> bool:
        """Whether to forward the header `name` to engines."""
        return self.keys is None or name.lower() not in CREDENTIALS

    def cors(self, headers: Headers) -> Mapping[str, str]:
        """Return the headers that let a requesting web page read the answer."""
        origin = headers.get("Origin", "")
        if not origin or not self._is_origin(origin):
            return {}
        return {
            "Access-Control-Allow-Origin": ANY if ANY in self._origins else origin,
            "Access-Control-Expose-Headers": ANY,
            "Vary": "Origin",
        }

    def preflight(self, headers: Headers) -> Mapping[str, str]:
        """Return the headers that let a web page send its request."""
        wanted = headers.get("Access-Control-Request-Headers", ANY)
        return {
            "Access-Control-Allow-Methods": "GET, POST, DELETE",
            "Access-Control-Allow-Headers": wanted if wanted.isascii() else ANY,
            "Access-Control-Allow-Private-Network": "true",
            "Access-Control-Max-Age": str(PREFLIGHT_S),
        }

    def _is_host(self, written: str) -> bool:
        try:
            name = (urlsplit(f"//{written}").hostname or "").rstrip(".")
        except ValueError:
            return False
        return name in self._hosts or _is_address(name)

    def _is_origin(self, origin: str) -> bool:
        return ANY in self._origins or origin.lower() in self._origins


def redacted(text: str, headers: Headers, query: str) -> str:
    """Return `text`, such as a traceback, without the keys and the query of a request."""
    hidden = [query, *(value for name in CREDENTIALS for value in headers.getall(name, ()))]
    words = {word for value in hidden for word in re.split(r"[\s&=;]+", value)}
    for word in sorted(words, key=len, reverse=True):
        if len(word) >= REDACTED_LENGTH_MIN:
            text = text.replace(word, "[hidden]")
    return text


def is_loopback(host: str) -> bool:
    """Whether `host` is reachable from this machine only; true for an unknown name."""
    if _is_address(host):
        return ipaddress.ip_address(host).is_loopback
    if not host:
        return False
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return True
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in found)


def _is_address(name: str) -> bool:
    """Whether `name` is an address: unlike a name, it cannot be made to resolve to this machine."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
