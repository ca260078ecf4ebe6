"""Stores whose server speaks TLS."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metropolis.store.base import StoreUnavailableError
from metropolis.store.check import check_store
from metropolis.store.server import RedisServer
from tests.store.conftest import REDIS
from tests.store.test_connect import served


@contextmanager
def tls_server(folder: Path) -> Iterator[int]:
    """Run a server on a port of localhost; its certificate is in the folder."""
    openssl = shutil.which("openssl")
    if REDIS is None or openssl is None:
        pytest.skip("redis-server or openssl is not installed; Debian has both")
    key, certificate = str(folder / "key"), str(folder / "certificate")
    command = [
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-nodes", "-days", "2"),
        *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        *("-keyout", key, "-out", certificate),
    ]
    subprocess.run([openssl, *command], check=True, capture_output=True)
    options = ["--tls-port", "PORT", "--port", "0", "--tls-auth-clients", "no"]
    files = ["--tls-key-file", key, "--tls-cert-file", certificate]
    with served(folder, *options, *files, binary=REDIS) as port:
        yield port


def test_tls(tmp_path: Path) -> None:
    with tls_server(tmp_path) as port:
        with pytest.raises(StoreUnavailableError, match="certificate"):
            RedisServer(f"rediss://localhost:{port}")
        certificate = tmp_path / "certificate"
        with RedisServer(f"rediss://localhost:{port}?ssl_ca_certs={certificate}") as server:
            check_store(server)
