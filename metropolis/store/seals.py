"""The seal of a store's folder, and the process that watches the store's server and writes it.

    python seals.py SOCKETS FOLDER SERVER ARGUMENT...

starts the server, ends it when standard input is closed, then removes the folder SOCKETS. If FOLDER
is given it seals the server's files there: every SEAL_S once a byte has arrived on standard input,
and completely once the server has ended, for whatever reason. The seal contains the size of each
file in bytes and its CRC-32. Only the standard library is used, so that the process starts fast
and stays small.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

SEAL_S = 0.25
"""Data written this shortly before a power cut is not sealed."""
SEAL = "seal.json"
SEAL_BYTES_MAX = 1 << 20
LOGS = "appendonlydir"
_PREFIX = "appendonly.aof."
_MANIFEST = "appendonly.aof.manifest"
_BLOCK_BYTES = 1 << 20
_LINE = re.compile(rb'\{"crc32":(\d+),"is":(\{.*\})\}\n', re.DOTALL)


@dataclass
class _File:
    """The part of a file read so far."""

    inode: int
    size_bytes: int = 0
    crc32: int = 0

    def read(self, path: Path) -> None:
        """Read what was added; start over if the file was replaced or truncated."""
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if about.st_ino != self.inode or about.st_size < self.size_bytes:
                self.inode, self.size_bytes, self.crc32 = about.st_ino, 0, 0
            if about.st_size == self.size_bytes:
                return
            os.fsync(file.fileno())  # sealed data is at least as durable as the seal
        self.read_to(path, about.st_size)

    def read_to(self, path: Path, end_bytes: int) -> None:
        """Read up to `end_bytes`, or to the end of a shorter file."""
        with path.open("rb") as file:
            file.seek(self.size_bytes)
            while block := file.read(min(_BLOCK_BYTES, end_bytes - self.size_bytes)):
                self.crc32 = crc32(block, self.crc32)
                self.size_bytes += len(block)


class Seals:
    """Seals the files in a store's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _File] = {}
        self._written: object = None

    def write(self, *, closed: bool) -> None:
        """Seal the current files; `closed`: nothing will be added. Raises OSError."""
        found = {}
        for path in _logs(self._folder):
            found[path.name] = file = self._files.get(path.name, _File(0))
            with suppress(FileNotFoundError):  # the server has replaced the file
                file.read(path)
        self._files = found
        files = {name: (file.size_bytes, file.crc32) for name, file in found.items()}
        if (closed, files) != self._written:
            _write(self._folder, closed, files)
            self._written = closed, files


def reopen(folder: Path) -> str | None:
    """Compare the folder's files with its seal, and mark the seal as open: files may grow.

    Returns the reason why they do not match; None: they match. Raises OSError.
    """
    seal, present = folder / SEAL, {path.name: path for path in _logs(folder)}
    if not os.path.lexists(seal):
        if present:
            return f"{seal}: is missing"
        _write(folder, False, {})
        return None
    with seal.open("rb") as file:
        match = _LINE.fullmatch(file.read(SEAL_BYTES_MAX))
    if match is None or crc32(match[2]) != int(match[1]):
        return f"{seal}: is damaged (its checksum does not fit)"
    try:
        closed, files = _decode(match[2])
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        return f"{seal}: is not a seal of this version"
    for name, (size_bytes, checksum) in files.items():
        path = folder / LOGS / name
        if name not in present:
            if closed:
                return f"{path}: is missing"
            continue  # the server has rewritten it completely since
        if name == _MANIFEST and not closed:
            continue
        found = _File(0)
        found.read_to(path, size_bytes)
        if found.size_bytes < size_bytes:
            return f"{path}: is cut off after {found.size_bytes} of {size_bytes} bytes"
        if found.crc32 != checksum:
            return f"{path}: is damaged (its checksum does not fit)"
        if closed and path.stat().st_size > size_bytes:
            return f"{path}: is damaged (something was added after {size_bytes} bytes)"
    if closed and (unsealed := present.keys() - files.keys()):
        return f"{present[min(unsealed)]}: was not written by this store's server"
    _write(folder, False, files)
    return None


def _decode(content: bytes) -> tuple[bool, dict[str, tuple[int, int]]]:
    """Whether the seal is closed, and the size and CRC-32 of each file."""
    seal = json.loads(content)
    files = {name: (int(size), int(checksum)) for name, (size, checksum) in seal["files"].items()}
    return bool(seal["closed"]), files


def _logs(folder: Path) -> list[Path]:
    logs = folder / LOGS
    if not logs.is_dir():
        return []
    return [path for path in logs.iterdir() if path.name.startswith(_PREFIX)]


def _write(folder: Path, closed: bool, files: object) -> None:
    """Like `metropolis.durable.write_atomically`, which this process does not import."""
    content = json.dumps({"closed": closed, "files": files}).encode()
    path, partial = folder / SEAL, folder / f"{SEAL}.partial"
    partial.unlink(missing_ok=True)
    with open(partial, "xb", opener=open_private) as file:
        file.write(b'{"crc32":%d,"is":%b}\n' % (crc32(content), content))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def open_private(path: str, flags: int) -> int:
    """Open a file that only this user can read; `flags` say whether to create it."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def _watch(sockets: Path, folder: Path | None, command: list[str]) -> None:
    os.umask(0o077)
    ended, held_by_server = os.pipe()
    os.set_inheritable(held_by_server, True)
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,  # the server holds the folder's lock
    )
    os.close(held_by_server)  # so `ended` reaches its end of file when the server has ended
    seals = None if folder is None else Seals(folder)
    try:
        with suppress(BrokenPipeError):  # the owner was killed: standard input is closed, too
            os.write(1, b"%d\n" % server.pid)
        _wait(server, ended, seals)
    finally:
        server.terminate()
        server.wait()
    if seals is not None:
        with suppress(OSError):
            seals.write(closed=True)
    shutil.rmtree(sockets, ignore_errors=True)


def _wait(server: subprocess.Popen[bytes], ended: int, seals: Seals | None) -> None:
    """Wait until the server ends or standard input is closed."""
    has_loaded = False
    while server.poll() is None:
        ready, _, _ = select.select([0, ended], [], [], SEAL_S)
        if 0 in ready:
            if not os.read(0, 1):
                return
            has_loaded = True
        elif ended in ready:
            with suppress(subprocess.TimeoutExpired):
                server.wait(SEAL_S)
        elif seals is not None and has_loaded:
            with suppress(OSError):  # e.g. a full disk; the previous seal remains
                seals.write(closed=False)


if __name__ == "__main__":
    _sockets, _folder, *_command = sys.argv[1:]
    _watch(Path(_sockets), Path(_folder) if _folder else None, _command)
