"""JSON over HTTP to one server: requests, answers, persistent connections, errors.

Answers are decoded and checked by msgspec.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from html import unescape
from typing import Any, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from metropolis.addresses import shown
from metropolis.llm.api_keys import without
from metropolis.llm.backends.connection import (
    LIMITS,
    AnswerLimitError,
    AnswerLimits,
    BrokenAnswerError,
    Connection,
)
from metropolis.llm.backends.meter import Meter
from metropolis.llm.backends.pool import Connections
from metropolis.llm.backends.sse import LAST, EventParser
from metropolis.llm.base import (
    LLMError,
    MalformedError,
    RateLimitedError,
    RefusedError,
    Request,
    UnavailableError,
    UnreachableError,
)
from metropolis.llm.placement import GATEWAY, headers_of
from metropolis.types import MetropolisError

CHECK_S = 10.0
"""Time limit of a GET, such as the check at the start of a run."""
ABORT_S = 5.0
"""Time limit of an abort; a server that does not answer completes the request in vain."""
SHOWN_CHARACTERS = 200
"""Maximum length of a server's reason in a message."""
SHOWN_BYTES = 4096
"""The part of a server's error body that is read for the message."""
NO_JSON = (msgspec.DecodeError, ValueError, RecursionError)
"""Errors of the decoder; ValueError for invalid UTF-8 and for integers of many digits."""
NO_ROUTE = (404, 405)
"""The path that was requested explains these; the base of an address may be wrong."""
SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)
"""A Retry-After in seconds."""
TITLE = re.compile(r"<title>([^<]+)", re.IGNORECASE)
"""The title of an HTML page, which web servers and proxies send as an error."""

T = TypeVar("T")


class JSONServer:
    """The server at `url`, named by `kind` and the address without user, password or query.

    Every failure raises an LLMError that names the server and the request.
    """

    def __init__(
        self, kind: str, url: str, api_key: str | None = None, limits: AnswerLimits = LIMITS
    ) -> None:
        self.url = parse_url(url)
        self.called = f"{kind} at {bare_url(self.url)}"
        self.meter = Meter(self.called)
        self.is_gateway = False
        """Whether the latest GET found a metropolis gateway: requests then carry its headers."""
        self._limits = limits
        self._connections = Connections(self.url, limits)
        self._api_key = api_key
        place = self.url.netloc.rpartition("@")[2]
        self._fields = f"Host: {place}\r\nAccept: application/json\r\n"
        if api_key is not None:
            self._fields += f"Authorization: Bearer {api_key}\r\n"
        elif self.url.username:
            pair = f"{unquote(self.url.username)}:{unquote(self.url.password or '')}"
            self._fields += f"Authorization: Basic {b64encode(pair.encode()).decode()}\r\n"
        self._heads: dict[str, bytes] = {}

    def without_key(self, text: str) -> str:
        """`text` with the key hidden: a server may repeat it."""
        return without(self._api_key, text)

    async def get(self, path: str, form: type[T]) -> T:
        """The answer to a GET, decoded as `form`; within CHECK_S seconds."""
        return decode(await self.content(path), form, self.called, "the check")

    async def content(self, path: str) -> bytes:
        """The raw answer to a GET; within CHECK_S seconds."""
        request = f"GET {self._path(path)} HTTP/1.1\r\n{self._fields}\r\n".encode()
        try:
            async with asyncio.timeout(CHECK_S), self._exchange(request, "the check") as connection:
                content = await self._read(connection, path, "the check")
                self.is_gateway = GATEWAY.lower().encode() in connection.headers
                return content
        except TimeoutError:
            raise UnavailableError(
                f"{self.called} did not answer within {CHECK_S:g} s; is the address right?"
            ) from None

    async def post(self, path: str, body: Any, form: type[T], request: Request) -> T:
        """The answer to a POST of `body`, decoded as `form`."""
        async with self._exchange(
            self._request_bytes(path, body, request), request.where
        ) as connection:
            content = await self._read(connection, path, request.where)
        return decode(content, form, self.called, request.where)

    async def send(
        self, path: str, body: Any, where: str, authorization: str | None = None
    ) -> None:
        """POST `body` and discard the answer. `authorization` is for servers without a key."""
        headers = {} if authorization is None else {"Authorization": authorization}
        async with self._exchange(self._post(path, body, headers), where) as connection:
            await self._read(connection, path, where)

    async def events(
        self, path: str, body: Any, form: type[T], request: Request
    ) -> AsyncGenerator[T, None]:
        """The server-sent events that answer a POST of `body`, up to `[DONE]`."""
        async with self._exchange(
            self._request_bytes(path, body, request), request.where
        ) as connection:
            if await connection.status() != 200:
                await self._read(connection, path, request.where)
            pieces = connection.chunks()
            async for event in events_in(pieces, form, self.called, request.where, self._limits):
                yield event
            connection.is_ending = True

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()

    async def _read(self, connection: Connection, path: str, where: str) -> bytes:
        status = await connection.status()
        content = await connection.content()
        if status == 200:
            return content
        retry_after = connection.headers.get(b"retry-after")
        reason = self.without_key(reason_in(content))
        raise refusal(status, reason, retry_after, self.called, where, self._path(path))

    @asynccontextmanager
    async def _exchange(self, request: bytes, where: str) -> AsyncGenerator[Connection, None]:
        """A connection on which `request` has been sent; kept afterwards if it is reusable."""
        connection = None
        try:
            connection = await self._connections.take()
            connection.send(request)
            yield connection
        except asyncio.CancelledError:
            if connection is not None:
                connection.close()  # the server learns that its answer is not used
            raise
        except AnswerLimitError as error:
            raise MalformedError(f"{self.called} gave an answer to {where} that {error}") from None
        except BrokenAnswerError as error:
            raise MalformedError(
                f"{self.called} broke off its answer to {where}: {error}"
            ) from None
        except OSError as error:
            is_refused = connection is not None or isinstance(error, ssl.SSLError)
            kind = UnavailableError if is_refused else UnreachableError
            raise kind(f"{self.called} cannot be reached for {where}: {_reason(error)}") from None
        finally:
            if connection is not None:
                self._connections.put_back(connection)

    def _path(self, path: str) -> str:
        return f"{self.url.path.rstrip('/')}/{path}"

    def _request_bytes(self, path: str, body: Any, request: Request) -> bytes:
        return self._post(path, body, headers_of(request) if self.is_gateway else {})

    def _post(self, path: str, body: Any, headers: Mapping[str, str]) -> bytes:
        if path not in self._heads:
            self._heads[path] = (
                f"POST {self._path(path)} HTTP/1.1\r\n{self._fields}"
                "Content-Type: application/json\r\nContent-Length: "
            ).encode()
        content = msgspec.json.encode(body)
        lines = "".join(f"\r\n{name}: {value}" for name, value in headers.items())
        fields = lines.encode("utf-8", "surrogateescape")
        return b"%b%d%b\r\n\r\n%b" % (self._heads[path], len(content), fields, content)


def decode(content: bytes | bytearray, form: type[T], called: str, where: str) -> T:
    """`content` of the server `called`, decoded as `form`; raises MalformedError on failure."""
    try:
        return msgspec.json.decode(content, type=form)
    except NO_JSON as error:
        raise MalformedError(f"{called} gave a malformed answer to {where}: {error}") from None


async def events_in(
    chunks: AsyncIterator[bytes],
    form: type[T],
    called: str,
    where: str,
    limits: AnswerLimits = LIMITS,
) -> AsyncGenerator[T, None]:
    """The server-sent events in `chunks`, up to `[DONE]`; raises MalformedError without it."""
    parser = EventParser()
    async for chunk in chunks:
        for event in parser.feed(chunk):
            if event.data == LAST:
                return
            if event.data:
                yield decode(event.data, form, called, where)
        if parser.held_bytes > limits.event_bytes:
            limit = f"{limits.event_bytes:,} bytes"
            raise MalformedError(f"{called} gave {where} an event that is longer than {limit}")
    raise MalformedError(f"{called} broke off its answer to {where}")


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message.rstrip(".")
        return f"its certificate is not trusted ({reason}); SSL_CERT_FILE may name trusted ones"
    if isinstance(error, ssl.SSLError):  # `errno` of such an error is OpenSSL's number
        if error.reason == "WRONG_VERSION_NUMBER":
            return "its answer is not TLS; write http:// if it serves plain HTTP"
        return error.reason or str(error)
    if error.errno is None:  # an error of asyncio may be empty
        return str(error) or "the connection was closed"
    if error.errno > 0:
        return os.strerror(error.errno)
    return str(error.strerror)  # an error of name resolution


def parse_url(url: str) -> SplitResult:
    """The parsed address; raises MetropolisError on an invalid one."""
    try:
        parsed = urlsplit(url)
        is_valid = parsed.scheme in ("http", "https") and parsed.hostname and parsed.port != 0
        is_valid = is_valid and url.isprintable() and " " not in url
    except ValueError:
        is_valid = False
    if not is_valid:
        host = "[::1]" if "::" in url else "127.0.0.1"
        raise MetropolisError(
            f"{shown(url)!r} is not the address of a server; write it like http://{host}:30000"
        )
    return parsed


def bare_url(url: SplitResult) -> str:
    """The address without user, password, query and trailing slash, for messages."""
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path.rstrip('/')}"


def refusal(
    status: int, reason: str, retry_after: str | None, called: str, where: str, path: str
) -> LLMError:
    """The error for an HTTP status other than 200; `path` is what was requested."""
    route = f" for {path}" if status in NO_ROUTE else ""
    sentence = f"{called} answered {where} with HTTP {status}{route}: {reason}"
    if route and path.endswith("/models"):
        sentence += "; its URL should be that of an OpenAI-compatible server"
    if status == 429:
        return RateLimitedError(sentence, seconds_of(retry_after))
    if status >= 500 or status == 408:
        return UnavailableError(sentence, seconds_of(retry_after))
    return RefusedError(sentence)


def seconds_of(retry_after: str | None) -> float | None:
    """A Retry-After header, a number or a date, in seconds; None when it is neither.

    A date without a zone is in UTC, as all dates in HTTP are.
    """
    if retry_after is None:
        return None
    if SECONDS.fullmatch(retry_after.strip()):
        return float(retry_after)
    try:
        when = parsedate_to_datetime(retry_after)
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        return max(0.0, (when - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


def reason_in(content: bytes) -> str:
    """A server's error message, as one line of printable characters."""
    text = content[:SHOWN_BYTES].decode(errors="replace")
    try:
        body = msgspec.json.decode(content)
    except NO_JSON:
        body = None
    for name in ("error", "message", "detail"):
        if isinstance(body, dict) and name in body:
            body = body[name]
    if isinstance(body, str):
        text = body[:SHOWN_BYTES]
    elif title := TITLE.search(text):
        text = unescape(title[1])
    return printable(text, SHOWN_CHARACTERS) or "no reason given"


def printable(text: str, characters_max: int) -> str:
    """The beginning of `text` as one line; control characters are shown as `?`."""
    line = " ".join(text.split())[:characters_max]
    return "".join(one if one.isprintable() else "?" for one in line)
