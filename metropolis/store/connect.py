"""Connections to Redis and Valkey: what is refused at the start, and errors in one sentence.

The address is a URL of redis-py: `redis://`, `rediss://` (TLS) or `unix://`. A password belongs
into the environment: in METROPOLIS_STORE_PASSWORD, or in a URL there. No error shows it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from metropolis.addresses import shown
from metropolis.store.base import StoreError, StoreUnavailableError

Client = Any
"""A redis.Redis, whose own types allow texts wherever it returns bytes."""
OLDEST = 7
"""The first major version with scripts that are refused as a whole when memory is full."""
TIMEOUT_S = 10.0
"""A server that says nothing for so long is gone."""
RETRIES = 2
PASSWORD = "METROPOLIS_STORE_PASSWORD"
EMBEDDED = "#embedded"
"""Ends the address of a server of our own, which has no password: its socket is private."""


def access(url: str) -> dict[str, Any]:
    """How to speak with the server at `url`, for redis-py; a password in `url` itself counts."""
    password = None if url.endswith(EMBEDDED) else os.environ.get(PASSWORD)
    return {"protocol": 2, "socket_connect_timeout": TIMEOUT_S, "password": password or None}


def connect(url: str) -> Client:
    """A client that is safe in threads, of a server that can keep a run.

    Raises StoreError in one sentence on a server that cannot.
    """
    try:
        client = redis.Redis.from_url(
            url,
            socket_timeout=TIMEOUT_S,
            retry=Retry(ExponentialWithJitterBackoff(base=0.05, cap=1), RETRIES),
            **access(url),
        )
    except ValueError as error:
        why = "" if "@" in url else f" ({error})"  # which may quote a part of the password
        raise StoreError(
            f"{shown(url)!r} is not an address of a store{why}; it should look like "
            "redis://localhost:6379/0"
        ) from None
    try:
        with speaking(url):
            about = client.info("everything")
        if about.get("loading"):
            raise StoreUnavailableError(f"{shown(url)}: the server is still reading what it keeps")
        cannot = flaw(about)
    except BaseException:
        client.close()
        raise
    if cannot is not None:
        client.close()
        raise StoreError(f"{shown(url)}: {cannot}")
    return client


def flaw(about: Mapping[str, Any]) -> str | None:
    """Why a server of which INFO says this cannot keep a run; None when it can."""
    version = str(about["redis_version"])
    limit, used = int(about.get("maxmemory", 0)), int(about.get("used_memory", 0))
    policy = about.get("maxmemory_policy", "noeviction")
    if int(version.split(".")[0]) < OLDEST:
        return f"the server's version is {version}; a store needs Redis {OLDEST} or Valkey"
    if about.get("cluster_enabled"):
        return "the server is part of a cluster; a store needs a server of its own"
    if about.get("role") != "master":
        return "the server is a replica, where nothing can be written; name its master"
    if limit and policy != "noeviction":
        return (
            f"the server drops keys when its memory is full (maxmemory-policy {policy}), which "
            "would lose parts of a run; set maxmemory-policy noeviction"
        )
    if limit and used >= limit:
        return f"the server's memory is full ({used:,} of {limit:,} bytes); raise its maxmemory"
    return None


def warnings(about: Mapping[str, Any]) -> list[str]:
    """What a run would not survive, a sentence each."""
    if not about.get("aof_enabled"):
        return [
            "the server keeps no append-only file, so a run is lost when the server ends; "
            "set appendonly yes"
        ]
    return []


@contextmanager
def speaking(url: str) -> Iterator[None]:
    """Turn what redis-py raises into StoreErrors that name `url` without its password."""
    try:
        yield
    except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
        raise StoreError(
            f"{shown(url)}: the server refuses this user ({error}); give the password in {PASSWORD}"
        ) from None
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise StoreUnavailableError(
            f"{shown(url)}: the store does not answer ({error}); start it, or name another one"
        ) from None
    except redis.exceptions.OutOfMemoryError as error:
        raise StoreUnavailableError(
            f"{shown(url)}: the store's memory is full ({error}); raise its maxmemory"
        ) from None
    except redis.ResponseError as error:
        raise StoreError(f"{shown(url)}: the store refuses: {error}") from None
