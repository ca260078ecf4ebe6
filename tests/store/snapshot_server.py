"""A server without an append-only file, which can be killed and started again with a snapshot."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from pathlib import Path

from metropolis.store.base import StoreUnavailableError
from metropolis.store.embedded import _valkey
from metropolis.store.server import RedisServer


class SnapshotServer(RedisServer):
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="metropolis-")
        self._socket = Path(self._folder.name) / "socket"
        self._process = self._start()
        super().__init__(f"unix://{self._socket}")

    def save(self) -> None:
        self.client.save()

    def restart(self) -> None:
        """Kill the server, and start it with its last snapshot."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = self._start()

    def close(self) -> None:
        super().close()
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def _start(self) -> subprocess.Popen[bytes]:
        self._socket.unlink(missing_ok=True)
        options = "--port", "0", "--unixsocket", f"{self._socket}", "--dir", self._folder.name
        started = subprocess.Popen([_valkey(), *options, "--save", ""], stdout=subprocess.DEVNULL)
        end_s = time.monotonic() + 10
        while True:
            try:
                RedisServer(f"unix://{self._socket}").close()
            except StoreUnavailableError:
                assert time.monotonic() < end_s
                time.sleep(0.02)
            else:
                return started
