"""Options of `metropolis gateway` for client access and limits."""

from __future__ import annotations

import functools
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from metropolis.gateway.access import Access, is_loopback
from metropolis.gateway.keys import Keys
from metropolis.gateway.limits import Limits
from metropolis.open_files import raise_limit
from metropolis.types import MetropolisError

DEFAULTS = Limits()
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FILES_KEPT = 64
"""Reserve of open files that are not connections."""


class Size(click.ParamType[int]):
    """A number of bytes, like 16MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        if isinstance(value, int):
            return value
        written = re.fullmatch(r"([1-9]\d{0,11})\s?(|KiB|MiB|GiB)", value)
        if written is None:
            self.fail(
                f"{value!r} is not a size; write a number of bytes, or one like 16MiB", param, ctx
            )
        return int(written[1]) * UNITS[written[2]]


class Front(NamedTuple):
    """Limits, access and TLS for clients."""

    limits: Limits
    access: Access
    tls: ssl.SSLContext | None
    """None: plain HTTP."""


def front_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add these options to `command`, which has a `host`; it receives them as `front`."""

    @click.option(
        "--api-key-file", type=FILE, metavar="FILE",
        help="File with a tenant and a key in each line. Requests without one of the keys are "
        "answered with 401; engines get the key in METROPOLIS_ENGINE_KEY. SIGHUP reloads the file.",
    )  # fmt: skip
    @click.option(
        "--allow-host", "hosts", multiple=True, metavar="NAME",
        help="Host name that requests may use, besides addresses, localhost and --host. Repeat the "
        "option for more.",
    )  # fmt: skip
    @click.option(
        "--allow-origin", "origins", multiple=True, metavar="ORIGIN",
        help="Origin of web pages that may use the gateway, like https://chat.example. Repeat the "
        "option for more; * allows all.",
    )  # fmt: skip
    @click.option(
        "--certificate", type=FILE, metavar="FILE",
        help="Serve HTTPS with this certificate and its chain (PEM).",
    )  # fmt: skip
    @click.option(
        "--certificate-key", type=FILE, metavar="FILE",
        help="Key of the certificate, if not in the same file.",
    )  # fmt: skip
    @click.option(
        "--body-limit", type=Size(), default="16MiB", show_default=True, metavar="SIZE",
        help="Maximum body of a request, decompressed; larger ones are answered with 413.",
    )  # fmt: skip
    @click.option(
        "--bodies-limit", type=Size(), default="1GiB", show_default=True, metavar="SIZE",
        help="Maximum of all bodies in memory; beyond it the connection that has been sending for "
        "longest is dropped, or else the request is answered with 503.",
    )  # fmt: skip
    @click.option(
        "--connections-limit", type=click.IntRange(1), default=DEFAULTS.connections,
        show_default=True,
        help="Maximum client connections; beyond it the connection that has been idle or sending "
        "for longest is dropped.",
    )  # fmt: skip
    @functools.wraps(command)
    def with_front(
        host: str,
        api_key_file: Path | None,
        hosts: tuple[str, ...],
        origins: tuple[str, ...],
        certificate: Path | None,
        certificate_key: Path | None,
        body_limit: int,
        bodies_limit: int,
        connections_limit: int,
        **options: Any,
    ) -> None:
        if bodies_limit < body_limit:
            raise MetropolisError(
                f"--bodies-limit is {bodies_limit:,} bytes, less than one body may have; set it to "
                f"at least --body-limit, which is {body_limit:,}"
            )
        if api_key_file is None and not is_loopback(host):
            raise MetropolisError(
                f"--host {host}: other machines may reach the gateway, and could use its engines "
                "without a key; give --api-key-file, or listen on 127.0.0.1"
            )
        keys = None if api_key_file is None else Keys(api_key_file, log)
        front = Front(
            Limits(body_limit, bodies_limit, connections_limit),
            Access((host, *hosts), origins, keys),
            _tls(certificate, certificate_key),
        )
        command(host=host, front=front, **options)

    return with_front


def log(news: str) -> None:
    """Print one line to standard error."""
    click.echo(news, err=True)


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        if key is not None:
            raise MetropolisError("--certificate-key needs a certificate; give --certificate")
        return None

    def password() -> str:
        raise MetropolisError(f"{key or certificate}: the key has a password; remove it")

    names = f"{certificate}" if key is None else f"{certificate}, {key}"
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password)
    except ssl.SSLError as error:
        reason = error.reason or "no PEM"
        raise MetropolisError(f"{names}: no certificate with its key ({reason})") from None
    except OSError as error:
        raise MetropolisError(f"{names}: {error.strerror}; give a PEM file") from None
    return context


def allow_connections(limits: Limits, engine_connections: int) -> None:
    """Raise the limit of open files to its maximum; warn if that is too low for the limits."""
    most = raise_limit()
    needed = limits.connections + engine_connections + FILES_KEPT
    if most is not None and most < needed:
        log(
            f"this process may open {most} files; {limits.connections} client connections and "
            f"those to engines need {needed}; raise `ulimit -n` or lower --connections-limit"
        )
