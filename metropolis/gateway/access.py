"""Who may ask: by the host that a request names, the web page it comes from, and its key.

1. A web page whose domain is made to resolve to this machine (DNS rebinding) names that domain as
   host: only addresses and known names are taken.
2. Browsers send the origin of a page with every POST. A page that is not allowed is refused,
   whatever its content type; one that is allowed gets the headers that let it read the answer.
   What a page loads without reading it, like a picture, has no origin: Sec-Fetch-Site tells.
3. With a file of keys, a client's key ends here: it is not sent to an engine.
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
OTHER_SITES = ("cross-site", "same-site")
CREDENTIALS = frozenset(("authorization", "x-api-key", "api-key", "cookie"))
"""Headers that hold keys, of OpenAI's, Anthropic's and Azure's clients."""
PREFLIGHT_S = 600
HIDDEN_CHARACTERS_MIN = 7
"""Of a word in a header with a key; shorter ones, like Bearer, are none."""


class Headers(Protocol):
    """Of a request; names in any case."""

    def get(self, key: str, default: str, /) -> str:
        """The first of that name."""

    def getall(self, key: str, default: tuple[str, ...], /) -> Iterable[str]:
        """All of that name."""


class AccessError(MetropolisError):
    """Refused, for `reason`, with `status`."""

    def __init__(self, reason: str, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.reason, self.status = reason, status


class Access:
    """Lets in who names a host of `hosts`, is no page or one of `origins`, and has a key."""

    def __init__(
        self, hosts: Iterable[str] = (), origins: Iterable[str] = (), keys: Keys | None = None
    ) -> None:
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
                "the host that the request names is not allowed; use an address, or start the "
                "gateway with --allow-host",
            )  # fmt: skip
        origin = headers.get("Origin", "")
        is_of_page = origin or headers.get("Sec-Fetch-Site", "").strip().lower() in OTHER_SITES
        if is_of_page and not self._is_origin(origin):
            raise AccessError(
                "origin", 403,
                "web pages of this origin may not use the gateway; start it with --allow-origin",
            )  # fmt: skip

    def tenant(self, headers: Headers) -> str:
        """Whose key the request has; empty without a file. Raises AccessError when it has none."""
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
            raise AccessError("key", 401, "the API key is none of this gateway's")
        return tenant

    def handed_on(self, name: str) -> bool:
        """Whether engines get that header."""
        return self.keys is None or name.lower() not in CREDENTIALS

    def cors(self, headers: Headers) -> Mapping[str, str]:
        """What lets the page that asks, if one does, read the answer."""
        origin = headers.get("Origin", "")
        if not origin or not self._is_origin(origin):
            return {}
        return {
            "Access-Control-Allow-Origin": ANY if ANY in self._origins else origin,
            "Access-Control-Expose-Headers": ANY,
            "Vary": "Origin",
        }

    def preflight(self, headers: Headers) -> Mapping[str, str]:
        """What lets the page send what it asks for."""
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
    """`text`, such as a traceback, without the keys and the query of a request."""
    hidden = [query, *(value for name in CREDENTIALS for value in headers.getall(name, ()))]
    words = {word for value in hidden for word in re.split(r"[\s&=;]+", value)}
    for word in sorted(words, key=len, reverse=True):
        if len(word) >= HIDDEN_CHARACTERS_MIN:
            text = text.replace(word, "[hidden]")
    return text


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there; true of an unknown name."""
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
    """An address is no name that somebody else can make resolve to this machine."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
