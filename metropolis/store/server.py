"""A Redis server with runs, by its address."""

from __future__ import annotations

from metropolis.addresses import shown
from metropolis.store.base import Server, Store, StoreError
from metropolis.store.connect import connect, store_errors
from metropolis.store.redis import RedisStore, prefix_of
from metropolis.store.redis_inspection import keys_of


class RedisServer(Server):
    """Runs in Redis or Valkey. Raises StoreError if the server is unsuitable (`connect`)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = connect(url)

    def store(self, run: str) -> Store:
        """See Server."""
        return RedisStore(self.client, self.url, run)

    def runs(self) -> list[str]:
        """See Server."""
        with store_errors(self.url):
            found = self.client.scan_iter(match="metropolis:{*}:info", count=1000)
            return sorted(key.decode()[len("metropolis:{") : -len("}:info")] for key in found)

    def remove(self, run: str) -> None:
        """See Server."""
        about = self.store(run).inspect()
        if about.lease_left_s > 0:
            raise StoreError(
                f"{shown(self.url)}: the run {run!r} is held by {about.holder}; end it first"
            )
        with store_errors(self.url):
            for key in list(keys_of(self.client, prefix_of(run))):
                self.client.unlink(key)

    def close(self) -> None:
        """See Server."""
        self.client.close()
