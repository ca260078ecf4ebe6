"""Connections to Redis and Valkey: checks at the start, and one-sentence errors.

The address is a URL of redis-py: `redis://`, `rediss://` (TLS) or `unix://`. Passwords belong in
the environment: in METROPOLIS_STORE_PASSWORD, or in a URL there. No error shows them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any
from urllib.parse import parse_qs, urlsplit

import redis
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.retry import Retry

from metropolis.addresses import shown
from metropolis.store.base import StoreError, StoreUnavailableError

Client = Any
"""A redis.Redis, untyped: its own types allow str wherever it returns bytes."""
MIN_MAJOR_VERSION = 7
"""The first major version of Redis that rejects whole scripts if memory is full."""
TIMEOUT_S = 10.0
"""A server that is silent this long is considered gone."""
RETRIES = 2
PASSWORD = "METROPOLIS_STORE_PASSWORD"
PERMISSIONS = (
    "the user needs the keys ~metropolis:* and the commands +@all -@admin -@dangerous +info"
)
_NOT_PERMITTED = "The user executing the script can't", "ACL failure in script"
"""How the errors of scripts begin: Redis, Valkey."""
_OPTIONS = frozenset(
    (
        "client_name",
        "db",
        "health_check_interval",
        "max_connections",
        "password",
        "retry_on_timeout",
        "socket_connect_timeout",
        "socket_timeout",
        "username",
    )
)
"""Options of redis-py that an address may have; others determine the form of replies, or need
objects."""
EMBEDDED_SUFFIX = "#embedded"
"""Suffix of an embedded server's address; it has no password, since its socket is private."""


def connection_options(url: str) -> dict[str, Any]:
    """Connection options of redis-py for `url`; a password in `url` itself has precedence."""
    password = None if url.endswith(EMBEDDED_SUFFIX) else os.environ.get(PASSWORD)
    return {"protocol": 2, "socket_connect_timeout": TIMEOUT_S, "password": password or None}


def connect(url: str) -> Client:
    """A thread-safe client of a server that can keep a run.

    Raises a one-sentence StoreError if the server is unsuitable.
    """
    try:
        client = redis.Redis.from_url(
            url,
            socket_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),  # so that a wrong address is reported soon
            **connection_options(url),
        )
        _check(url)
    except ValueError as error:
        why = "" if "@" in url else f" ({error})"  # may quote a part of the password
        raise StoreError(
            f"{shown(url)!r} is not an address of a store{why}; it should look like "
            "redis://localhost:6379/0"
        ) from None
    try:
        with store_errors(url):
            about = client.info("everything")
        if about.get("loading"):
            raise StoreUnavailableError(f"{shown(url)}: the server is still loading its data")
        reason = reason_unsuitable(about)
    except BaseException:
        client.close()
        raise
    if reason is not None:
        client.close()
        raise StoreError(f"{shown(url)}: {reason}")
    client.set_retry(Retry(ExponentialWithJitterBackoff(base=0.05, cap=1), RETRIES))
    return client


def _check(url: str) -> None:
    """Raise StoreError if `url` has options of no use, or no number as its database.

    It is not repeated: a mistyped password may be a part of it.
    """
    parts, known = urlsplit(url), _OPTIONS
    if parts.scheme != "unix":
        known |= {"socket_keepalive"}
    if parts.scheme == "rediss":
        known |= {name for name in signature(redis.SSLConnection).parameters if "ssl_" in name}
    if parse_qs(parts.query).keys() - known:
        raise StoreError(
            f"{shown(url)}: the options of the address should be of {', '.join(sorted(known))}"
        )
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        raise StoreError(
            f"{shown(url)}: the address should end with the number of a database, like "
            "redis://localhost:6379/0"
        )


def reason_unsuitable(about: Mapping[str, Any]) -> str | None:
    """The reason why a server with this INFO cannot keep a run; None: it can."""
    version = str(about["redis_version"])
    limit, used = int(about.get("maxmemory", 0)), int(about.get("used_memory", 0))
    policy = about.get("maxmemory_policy", "noeviction")
    if int(version.split(".")[0]) < MIN_MAJOR_VERSION:
        return (
            f"the server's version is {version}; a store needs Redis {MIN_MAJOR_VERSION} or Valkey"
        )
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
    """Events that a run would not survive, one sentence each."""
    if not about.get("aof_enabled"):
        return [
            "the server keeps no append-only file, so a run is lost when the server ends; "
            "set appendonly yes"
        ]
    return []


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """Convert redis-py's exceptions to StoreErrors that name `url` without its password."""
    try:
        yield
    except redis.AuthenticationError as error:
        raise StoreError(
            f"{shown(url)}: the server refuses this user ({error}); give the password in {PASSWORD}"
        ) from None
    except redis.exceptions.NoPermissionError as error:
        raise StoreError(f"{shown(url)}: {error}; {PERMISSIONS}") from None
    except (redis.ConnectionError, redis.TimeoutError) as error:
        advice = "start it, or name another one"
        if url.endswith(EMBEDDED_SUFFIX):
            advice = "the file server.log beside its data says why"
        elif url.startswith("rediss:"):
            advice += "; a server without TLS has an address that begins with redis:"
        raise StoreUnavailableError(
            f"{shown(url)}: the store does not answer ({error}); {advice}"
        ) from None
    except redis.exceptions.OutOfMemoryError as error:
        raise StoreUnavailableError(
            f"{shown(url)}: the store's memory is full ({error}); raise its maxmemory"
        ) from None
    except redis.ResponseError as error:
        if str(error).startswith("BUSY "):
            raise StoreUnavailableError(
                f"{shown(url)}: the store runs a long script ({error}); wait until it has ended"
            ) from None
        advice = f"; {PERMISSIONS}" if str(error).startswith(_NOT_PERMITTED) else ""
        raise StoreError(f"{shown(url)}: the store refuses: {error}{advice}") from None
    except redis.RedisError as error:  # no Redis, or an option that redis-py refuses
        raise StoreError(
            f"{shown(url)}: the store cannot be used ({error}); name a Redis or Valkey"
        ) from None
