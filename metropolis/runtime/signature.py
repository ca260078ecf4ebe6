"""Signatures of what a run's folder names: run.json and store.json.

What these name is run as code, or connected to with the user's keys and passwords. The signature is
an HMAC-SHA256 with a random key of this user, made at the first use, readable by them alone. It
tells a folder that this user has written from all others, on every machine that shares their
configuration folder. It does not cover what files hold that run.json names.
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
    """This user has no key, for the reason it tells."""


def sign(kind: str, content: Mapping[str, Any]) -> str | None:
    """The signature of a file of that kind, whose `content` is JSON; None: the user has no key."""
    try:
        key = _make_key()
    except _NoKeyError:
        return None
    return _signature(key, kind, content)


def flaw(kind: str, content: Mapping[str, Any], signature: object) -> str | None:
    """Why this user has not written `content`, or does not know; None: they have."""
    if signature is None:
        hindrance = _hindrance()
        return "is not signed" + (f" (this user cannot sign: {hindrance})" if hindrance else "")
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
    """The name of the key, which is no secret, and the code of kind and content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    code = hmac.digest(key, f"metropolis {kind} 1\n{text}".encode(), sha256)
    return f"{hmac.digest(key, b'name', sha256).hex()[:_NAME_CHARACTERS]}:{code.hex()}"


def _key_file() -> Path:
    told = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    try:
        base = told if told.is_absolute() else Path.home() / ".config"
    except RuntimeError:
        raise _NoKeyError("this user has no home; XDG_CONFIG_HOME can name a folder") from None
    return base / "metropolis" / "run-key"


def _read_key() -> bytes:
    path = _key_file()
    try:
        with open(path, "rb", opener=_at_once) as file:
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


def _at_once(path: str, flags: int) -> int:
    """A pipe without a writer is not waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def _hindrance() -> str | None:
    """Why this user can make no signature; None: they can. Makes nothing."""
    try:
        path = _key_file()
        if os.path.lexists(path):
            _read_key()
            return None
    except _NoKeyError as error:
        return str(error)
    there = next(folder for folder in path.parents if os.path.lexists(folder))
    if os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK):
        return None
    return f"{path}: {there} is not a folder that can be written"


def _make_key() -> bytes:
    """The key; one is made if there is none. Of several processes at once all get the same."""
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
