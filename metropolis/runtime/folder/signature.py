"""Signatures of files in a run's folder: run.json and store.json.

Their contents name code to run, or servers to connect to with the user's keys and passwords. The
signature is an HMAC-SHA256 with a random key of this user, created on first use, readable by this
user alone. It distinguishes this user's folders from all others, on every machine that shares the
user's configuration folder. It does not cover the contents of files that run.json names.
"""

from __future__ import annotations

import hmac
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes
from tempfile import NamedTemporaryFile
from typing import Any

KEY_BYTES = 32
_NAME_CHARACTERS = 8


class _NoKeyError(Exception):
    """This user has no key; the message gives the reason."""


def sign(kind: str, content: Mapping[str, Any]) -> str | None:
    """The signature of the JSON `content` of a file of type `kind`; None: the user has no key."""
    try:
        key = _make_key()
    except _NoKeyError:
        return None
    return _signature(key, kind, content)


def distrust_reason(kind: str, content: Mapping[str, Any], signature: object) -> str | None:
    """The reason not to trust that this user wrote `content`; None: the signature is valid."""
    if signature is None:
        obstacle = _signing_obstacle()
        return "is not signed" + (f" (this user cannot sign: {obstacle})" if obstacle else "")
    try:
        key = _read_key()
    except _NoKeyError as error:
        return f"cannot be checked ({error})"
    try:
        expected = _signature(key, kind, content)
    except RecursionError:
        return "is nested too deeply to be this user's"
    if not isinstance(signature, str) or not signature.isascii():
        return "is not signed"
    if hmac.compare_digest(signature, expected):
        return None
    if signature[:_NAME_CHARACTERS] != expected[:_NAME_CHARACTERS]:
        return "is signed with another user's or machine's key"
    return "has been changed since this user signed it"


def _signature(key: bytes, kind: str, content: Mapping[str, Any]) -> str:
    """The key's public name, and the authentication code of kind and content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    code = hmac.digest(key, f"metropolis {kind} 1\n{text}".encode(), sha256)
    return f"{hmac.digest(key, b'name', sha256).hex()[:_NAME_CHARACTERS]}:{code.hex()}"


def _key_file() -> Path:
    configured = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    try:
        base = configured if configured.is_absolute() else Path.home() / ".config"
    except RuntimeError:
        raise _NoKeyError("this user has no home; XDG_CONFIG_HOME can name a folder") from None
    return base / "metropolis" / "run-key"


def _read_key() -> bytes:
    path = _key_file()
    try:
        with open(path, "rb", opener=_open_nonblocking) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise _NoKeyError(
                    f"{path}: is not a regular file; remove it, and a new key is made"
                )
            key = file.read(KEY_BYTES + 1)
    except OSError as error:
        raise _NoKeyError(f"{path}: {error.strerror}") from None
    if about.st_uid != os.geteuid():
        raise _NoKeyError(f"{path}: is another user's")
    if stat.S_IMODE(about.st_mode) & 0o077:
        raise _NoKeyError(f"{path}: others can read it; remove it, and a new one is made")
    if len(key) != KEY_BYTES:
        raise _NoKeyError(f"{path}: is not a key; remove the file, and a new key is made")
    return key


def _open_nonblocking(path: str, flags: int) -> int:
    """Open without blocking on a pipe that has no writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _signing_obstacle() -> str | None:
    """The reason why this user cannot sign; None: they can. Creates nothing."""
    try:
        path = _key_file()
        if os.path.lexists(path):
            _read_key()
            return None
    except _NoKeyError as error:
        return str(error)
    existing = next(folder for folder in path.parents if os.path.lexists(folder))
    if os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK):
        return None
    return f"{path}: {existing} is not a folder that can be written"


def _make_key() -> bytes:
    """Return the key, creating it if necessary; concurrent processes get the same one."""
    path = _key_file()
    if os.path.lexists(path):
        return _read_key()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.parent.stat().st_uid != os.geteuid():
            raise _NoKeyError(f"{path.parent}: is another user's")
        with NamedTemporaryFile(dir=path.parent) as file:  # with mode 0600
            file.write(token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
            with suppress(FileExistsError):  # another process was faster
                os.link(file.name, path)
    except OSError as error:
        raise _NoKeyError(f"{path}: {error.strerror}") from None
    return _read_key()
