"""Servers for store tests; those in other processes are shared by all tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from metropolis.store.base import Server
from metropolis.store.embedded import EmbeddedServer
from metropolis.store.memory import MemoryServer

KINDS = ("memory", "valkey", "redis")
REDIS = shutil.which("redis-server")


@pytest.fixture(scope="session")
def server_of() -> Iterator[Callable[[str], Server]]:
    """Yield a function that returns the server of a kind, started on first use."""

    @cache
    def started(kind: str) -> Server:
        if kind == "memory":
            return MemoryServer()
        if kind == "valkey":
            return EmbeddedServer()
        if REDIS is None:
            pytest.skip("redis-server is not installed; Debian has it: apt install redis-server")
        return EmbeddedServer(binary=REDIS)

    opened: dict[str, Server] = {}

    def server(kind: str) -> Server:
        opened[kind] = started(kind)
        return opened[kind]

    yield server
    for one in opened.values():
        one.close()


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, server_of: Callable[[str], Server]) -> Server:
    return server_of(request.param)


@pytest.fixture(params=["valkey", "redis"])
def shared(request: pytest.FixtureRequest, server_of: Callable[[str], Server]) -> EmbeddedServer:
    """A server that other processes can reach."""
    chosen = server_of(request.param)
    assert isinstance(chosen, EmbeddedServer)
    return chosen
