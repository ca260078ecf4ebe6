"""The URL of a server, and the sentence of one that cannot listen."""

from __future__ import annotations

import errno
import socket

import pytest

from metropolis.listening import cannot_listen, url_at


@pytest.mark.parametrize(
    ("address", "url"),
    [
        (("127.0.0.1", 8000), "http://127.0.0.1:8000"),
        (("::1", 8000, 0, 0), "http://[::1]:8000"),
    ],
)
def test_addresses_of_ipv6_are_bracketed(address: tuple[object, ...], url: str) -> None:
    assert url_at("http", address) == url


def test_brackets_are_named() -> None:
    error = cannot_listen("[::1]", 80, socket.gaierror(socket.EAI_NONAME, "Name or service"))
    assert "at [::1]:80: an IPv6 address has no brackets here; choose another --host" in str(error)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EADDRINUSE, "error while attempting to bind"), "Address already in use"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not"),
        (OSError("could not bind on any address"), "could not bind on any address"),
    ],
)
def test_the_reason_is_the_systems_if_it_gives_one(error: OSError, reason: str) -> None:
    assert str(cannot_listen("host", 80, error)).startswith(f"cannot listen at host:80: {reason}")
