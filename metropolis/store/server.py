"""A Redis server with runs, by its address."""

from __future__ import annotations

from redis.exceptions import ResponseError

from metropolis.addresses import shown
from metropolis.store.base import Server, Store, StoreError
from metropolis.store.connect import connect, store_errors
from metropolis.store.redis import RedisStore, prefix_of
from metropolis.store.redis_inspection import keys_of
from metropolis.store.scripts import check_permissions


class RedisServer(Server):
    """Runs in Redis or Valkey. Raises StoreError if the server is unsuitable (`connect`)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = connect(url)
        try:
            check_permissions(self.client, url)
        except BaseException:
            self.client.close()
            raise

    def store(self, run: str) -> Store:
        """See Server."""
        return RedisStore(self.client, self.url, run)

    def runs(self) -> list[str]:
        """See Server."""
        with store_errors(self.url):
            found = self.client.scan_iter(match="metropolis:{*}:info", count=1000)
            names = (key[len("metropolis:{") : -len("}:info")] for key in found)
            return sorted(name.decode() for name in names if _is_ours(name))

    def remove(self, run: str) -> None:
        """See Server."""
        prefix = prefix_of(run)
        with store_errors(self.url):
            if not self.client.exists(f"{prefix}info"):
                raise StoreError(f"{shown(self.url)}: there is no run {run!r}")
            if (holder := self._holder(prefix)) is not None:
                raise StoreError(
                    f"{shown(self.url)}: the run {run!r} is held by {holder}; end it first"
                )
            # in one command: a part of a run would be taken for all of it
            self.client.unlink(*keys_of(self.client, prefix))

    def _holder(self, prefix: str) -> str | None:
        """The holder of a run's lease; None if there is none, or the run's state is damaged."""
        try:
            holder, until_ms = self.client.hmget(f"{prefix}state", "holder", "until_ms")
        except ResponseError:  # a key of that name with another type of value
            return None
        seconds, microseconds = self.client.time()
        now_ms = seconds * 1000 + microseconds // 1000
        if not until_ms or not until_ms.isdigit() or int(until_ms) <= now_ms:
            return None
        return (holder or b"another process").decode(errors="replace")

    def close(self) -> None:
        """See Server."""
        self.client.close()


def _is_ours(name: bytes) -> bool:
    """Whether a run may have this name; other programs' keys may be like ours."""
    try:
        prefix_of(name.decode())
    except (UnicodeDecodeError, StoreError):
        return False
    return True
