"""Keys of clients, from a file of lines `tenant key`, and of engines, from the environment.

Messages give file and line, never the line's content: it may be a key.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from metropolis.llm.api_keys import api_key, is_word
from metropolis.types import MetropolisError

KEY_CHARACTERS_MIN = 16
TENANT_CHARACTERS_MAX = 64
FILE_BYTES_MAX = 1 << 20
ENGINE_KEY = "METROPOLIS_ENGINE_KEY"
"""The variable for all engines; for the first, METROPOLIS_ENGINE_KEY_1 takes precedence."""


class Keys:
    """The keys in `file`; `log` receives warnings and reload messages. Raises MetropolisError."""

    def __init__(self, file: Path, log: Callable[[str], None]) -> None:
        self._file, self._log = file, log
        self._tenants = self._read()

    def tenant_of(self, keys: Iterable[str]) -> str | None:
        """Return the owner of one of `keys`, or None.

        The time depends on the digests only, which reveal no key.
        """
        owners = (self._tenants.get(_digest(key)) for key in keys)
        return next((tenant for tenant in owners if tenant is not None), None)

    def reload(self) -> None:
        """Read the file again; keep the former keys if it is invalid."""
        try:
            self._tenants = self._read()
            self._log(f"{self._file}: {len(self._tenants)} keys")
        except MetropolisError as error:
            self._log(f"{error}; the former keys remain")

    def _read(self) -> dict[bytes, str]:
        """Return tenants by the digest of their keys."""
        try:
            with self._file.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                content = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise MetropolisError(f"{self._file}: {error.strerror}") from None
        if len(content) > FILE_BYTES_MAX:
            raise MetropolisError(f"{self._file}: more than {FILE_BYTES_MAX:,} bytes")
        tenants: dict[bytes, str] = {}
        for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
            if line.strip() and not line.lstrip().startswith("#"):
                tenant, digest = _parsed(line, f"{self._file}, line {number}")
                if digest in tenants:
                    raise MetropolisError(f"{self._file}, line {number}: a duplicate key")
                tenants[digest] = tenant
        if not tenants:
            raise MetropolisError(f"{self._file}: no keys; write lines like: tenant key")
        if mode & 0o077:
            self._log(f"{self._file}: other users may read the keys; chmod 600 {self._file}")
        return tenants


def engine_key(number: int) -> str | None:
    """Return the key of the `number`-th `--engine`, counted from 1, or None."""
    own = f"{ENGINE_KEY}_{number}"
    name = own if own in os.environ else ENGINE_KEY
    return api_key(name)


def _parsed(line: str, where: str) -> tuple[str, bytes]:
    words = line.split()
    if len(words) != 2:
        raise MetropolisError(f"{where}: {len(words)} words; write a tenant and a key")
    tenant, key = words
    if len(tenant) > TENANT_CHARACTERS_MAX or not tenant.isprintable():
        raise MetropolisError(
            f"{where}: write a tenant of at most {TENANT_CHARACTERS_MAX} printable characters"
        )
    if len(key) < KEY_CHARACTERS_MIN or not is_word(key):
        raise MetropolisError(
            f"{where}: write a key of at least {KEY_CHARACTERS_MIN} printable ASCII characters, "
            "such as `openssl rand -hex 32` prints"
        )
    return tenant, _digest(key)


def _digest(key: str) -> bytes:
    """Hash a key, so that comparisons do not reveal its length and memory contains no key."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
