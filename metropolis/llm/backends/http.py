"""JSON over HTTP to one server: requests and answers, connections that stay open, what errors mean.

Answers are decoded and checked by msgspec.
"""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from metropolis.llm.backends.connection import BrokenAnswerError, Connection
from metropolis.llm.backends.pool import Connections
from metropolis.llm.base import (
    LLMError,
    MalformedError,
    RateLimitedError,
    RefusedError,
    UnavailableError,
    UnreachableError,
)
from metropolis.types import MetropolisError

CHECK_S = 10.0
ABORT_S = 5.0
"""A server that does not listen for so long goes on with what nobody waits for."""
SHOWN_CHARACTERS = 200

T = TypeVar("T")


class JSONServer:
    """A server at `url`; `kind` and the address, without user, password or query, name it.

    Every failure raises an LLMError that names the server and what was `asked`.
    """

    def __init__(self, kind: str, url: str, api_key: str | None = None) -> None:
        self.url = parse_url(url)
        self.called = f"{kind} at {bare_url(self.url)}"
        self._connections = Connections(self.url)
        place = self.url.netloc.rpartition("@")[2]
        self._fields = f"Host: {place}\r\nAccept: application/json\r\n"
        if api_key is not None:
            self._fields += f"Authorization: Bearer {api_key}\r\n"
        elif self.url.username:
            pair = f"{unquote(self.url.username)}:{unquote(self.url.password or '')}"
            self._fields += f"Authorization: Basic {b64encode(pair.encode()).decode()}\r\n"
        self._heads: dict[str, bytes] = {}

    async def get(self, path: str, form: type[T]) -> T:
        """The answer to a GET, as a `form`; within CHECK_S seconds."""
        return decode(await self.content(path), form, self.called, "the check")

    async def content(self, path: str) -> bytes:
        """The answer to a GET as it comes; within CHECK_S seconds."""
        request = f"GET {self._path(path)} HTTP/1.1\r\n{self._fields}\r\n".encode()
        try:
            async with asyncio.timeout(CHECK_S):
                return await self._exchange(request, "the check")
        except TimeoutError:
            raise UnavailableError(
                f"{self.called} did not answer within {CHECK_S:g} s; is the address right?"
            ) from None

    async def post(self, path: str, body: Any, form: type[T], asked: str) -> T:
        """The answer to a POST of `body`, as a `form`."""
        content = await self._exchange(self._post(path, body), asked)
        return decode(content, form, self.called, asked)

    async def send(
        self, path: str, body: Any, asked: str, authorization: str | None = None
    ) -> None:
        """POST `body`; the answer does not matter. `authorization` is for servers without a key."""
        await self._exchange(self._post(path, body, authorization), asked)

    async def events(
        self, path: str, body: Any, form: type[T], asked: str
    ) -> AsyncGenerator[T, None]:
        """The server-sent events that answer a POST of `body`, up to `[DONE]`."""
        async with self._sent(self._post(path, body), asked) as connection:
            if await connection.status() != 200:
                await self._read(connection, asked)
            async for event in events_in(connection.chunks(), form, self.called, asked):
                yield event

    async def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    async def _exchange(self, request: bytes, asked: str) -> bytes:
        async with self._sent(request, asked) as connection:
            return await self._read(connection, asked)

    async def _read(self, connection: Connection, asked: str) -> bytes:
        status = await connection.status()
        content = await connection.content()
        if status == 200:
            return content
        retry_after = connection.headers.get(b"retry-after")
        raise refusal(status, said(content), retry_after, self.called, asked)

    @asynccontextmanager
    async def _sent(self, request: bytes, asked: str) -> AsyncGenerator[Connection, None]:
        """A connection on which `request` has been sent; kept afterwards if it is good."""
        connection = None
        try:
            connection = await self._connections.take()
            connection.send(request)
            yield connection
        except BrokenAnswerError:
            raise MalformedError(f"{self.called} broke off its answer to {asked}") from None
        except OSError as error:
            kind = UnreachableError if connection is None else UnavailableError
            raise kind(f"{self.called} cannot be reached for {asked}: {_reason(error)}") from None
        finally:
            if connection is not None:
                self._connections.put_back(connection)

    def _path(self, path: str) -> str:
        return f"{self.url.path.rstrip('/')}/{path}"

    def _post(self, path: str, body: Any, authorization: str | None = None) -> bytes:
        if path not in self._heads:
            self._heads[path] = (
                f"POST {self._path(path)} HTTP/1.1\r\n{self._fields}"
                "Content-Type: application/json\r\nContent-Length: "
            ).encode()
        content = msgspec.json.encode(body)
        key = f"\r\nAuthorization: {authorization}" if authorization is not None else ""
        written = key.encode("utf-8", "surrogateescape")
        return b"%b%d%b\r\n\r\n%b" % (self._heads[path], len(content), written, content)


def decode(content: bytes, form: type[T], called: str, asked: str) -> T:
    """What `called` has answered, as a `form`; raises MalformedError when it is none."""
    try:
        return msgspec.json.decode(content, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedError(f"{called} gave a malformed answer to {asked}: {error}") from None


async def events_in(
    chunks: AsyncIterator[bytes], form: type[T], called: str, asked: str
) -> AsyncGenerator[T, None]:
    """The server-sent events in `chunks`, up to `[DONE]`; raises MalformedError without it."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            if data and line.startswith(b"data:"):
                yield decode(data, form, called, asked)
    raise MalformedError(f"{called} broke off its answer to {asked}")


def _reason(error: OSError) -> str:
    if error.errno is None:
        return str(error)
    if error.errno > 0:
        return os.strerror(error.errno)
    return str(error.strerror)  # of the name service


def parse_url(url: str) -> SplitResult:
    """The address; raises MetropolisError on what is none."""
    try:
        parsed = urlsplit(url)
        good = parsed.scheme in ("http", "https") and parsed.hostname and parsed.port != 0
    except ValueError:
        good = False
    if not good:
        raise MetropolisError(
            f"{url!r} is not the address of a server; write it like http://127.0.0.1:30000"
        )
    return parsed


def bare_url(url: SplitResult) -> str:
    """Without user, password, query and last slash, for sentences."""
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path.rstrip('/')}"


def refusal(status: int, reason: str, retry_after: str | None, called: str, asked: str) -> LLMError:
    """What an HTTP status other than 200 means."""
    sentence = f"{called} answered {asked} with HTTP {status}: {reason}"
    if status == 429:
        return RateLimitedError(sentence, seconds_of(retry_after))
    if status >= 500 or status == 408:
        return UnavailableError(sentence)
    return RefusedError(sentence)


def seconds_of(retry_after: str | None) -> float | None:
    """A Retry-After header in seconds: it may be a number or a date; None when it is neither."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def said(content: bytes) -> str:
    """What a server says about an error, in one line."""
    text = content.decode(errors="replace")
    try:
        body = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = None
    for name in ("error", "message", "detail"):
        if isinstance(body, dict) and name in body:
            body = body[name]
    if isinstance(body, str):
        text = body
    return " ".join(text.split())[:SHOWN_CHARACTERS] or "nothing more was said"
