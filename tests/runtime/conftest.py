"""Servers for runs in a store, shared by all tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from metropolis.store.embedded import EmbeddedServer


@pytest.fixture(scope="session", params=["valkey", "redis"])
def shared(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """A server that other processes reach."""
    redis = shutil.which("redis-server")
    if request.param == "redis" and redis is None:
        pytest.skip("redis-server is not installed; Debian has it: apt install redis-server")
    with EmbeddedServer(binary=redis if request.param == "redis" else None) as server:
        assert isinstance(server, EmbeddedServer)
        yield server
