"""Servers for runs in a store, shared by all tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import ray

from metropolis.store.embedded import EmbeddedServer


@pytest.fixture(scope="session")
def valkey() -> Iterator[EmbeddedServer]:
    """A server that other processes can reach."""
    with EmbeddedServer() as server:
        assert isinstance(server, EmbeddedServer)
        yield server


@pytest.fixture(scope="session", params=["valkey", "redis"])
def shared(request: pytest.FixtureRequest, valkey: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """The same of either kind; tests for which the kind cannot matter use `valkey`."""
    if request.param == "valkey":
        yield valkey
        return
    redis = shutil.which("redis-server")
    if redis is None:
        pytest.skip("redis-server is not installed; Debian has it: apt install redis-server")
    with EmbeddedServer(binary=redis) as server:
        assert isinstance(server, EmbeddedServer)
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A local Ray cluster."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()
