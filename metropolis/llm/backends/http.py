"""JSON over HTTP to one server, with as little work per call as it takes.

One session, connections that stay open, no cookies, answers decoded and checked by msgspec.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import aiohttp
import msgspec
from yarl import URL

from metropolis.llm.base import (
    LLMError,
    MalformedError,
    RateLimitedError,
    RefusedError,
    UnavailableError,
)
from metropolis.types import MetropolisError

CONNECT_S = 10.0
CHECK_S = 10.0
SHOWN_CHARACTERS = 200
JSON = "application/json"

T = TypeVar("T")


class JSONServer:
    """A server at `url`; `kind` and the address, without user, password or query, name it.

    Every failure raises an LLMError that names the server and what was `asked`.
    """

    def __init__(self, kind: str, url: str, api_key: str | None = None) -> None:
        self.url = parse_url(url)
        self.called = f"{kind} at {self.url.with_user(None).with_query(None)}"
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[str, URL] = {}

    async def get(self, path: str, form: type[T]) -> T:
        """The answer to a GET, as a `form`; within CHECK_S seconds."""
        timeout = aiohttp.ClientTimeout(total=CHECK_S)
        try:
            async with self._open().get(self.url / path, timeout=timeout) as response:
                return self._decode(await self._read(response, "the check"), form, "the check")
        except TimeoutError:
            raise UnavailableError(
                f"{self.called} did not answer within {CHECK_S:g} s; is the address right?"
            ) from None
        except aiohttp.ClientError as error:
            raise self._failure(error, "the check") from error

    async def post(self, path: str, body: Any, form: type[T], asked: str) -> T:
        """The answer to a POST of `body`, as a `form`."""
        try:
            async with self._post(path, body) as response:
                return self._decode(await self._read(response, asked), form, asked)
        except aiohttp.ClientError as error:
            raise self._failure(error, asked) from error

    async def send(self, path: str, body: Any, asked: str) -> None:
        """POST `body`; the answer does not matter."""
        try:
            async with self._post(path, body) as response:
                await self._read(response, asked)
        except aiohttp.ClientError as error:
            raise self._failure(error, asked) from error

    async def events(
        self, path: str, body: Any, form: type[T], asked: str
    ) -> AsyncGenerator[T, None]:
        """The server-sent events that answer a POST of `body`, up to `[DONE]`."""
        try:
            async with self._post(path, body) as response:
                if response.status != 200:
                    await self._read(response, asked)
                async for line in response.content:
                    data = line.removeprefix(b"data:").strip()
                    if data == b"[DONE]":
                        return
                    if data and line.startswith(b"data:"):
                        yield self._decode(data, form, asked)
        except aiohttp.ClientError as error:
            raise self._failure(error, asked) from error
        raise MalformedError(f"{self.called} broke off its answer to {asked}")

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),  # the client bounds concurrency
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                headers=self._headers,
            )
        return self._session

    def _post(self, path: str, body: Any) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        if path not in self._urls:
            self._urls[path] = self.url / path
        content = aiohttp.BytesPayload(msgspec.json.encode(body), content_type=JSON)
        return self._open().post(self._urls[path], data=content)

    async def _read(self, response: aiohttp.ClientResponse, asked: str) -> bytes:
        content = await response.read()
        if response.status == 200:
            return content
        raise refusal(
            response.status,
            said(content),
            response.headers.get("Retry-After"),
            self.called,
            asked,
        )

    def _decode(self, content: bytes, form: type[T], asked: str) -> T:
        try:
            return msgspec.json.decode(content, type=form)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise MalformedError(
                f"{self.called} gave a malformed answer to {asked}: {error}"
            ) from None

    def _failure(self, error: aiohttp.ClientError, asked: str) -> LLMError:
        if isinstance(error, aiohttp.ClientPayloadError):
            return MalformedError(f"{self.called} broke off its answer to {asked}")
        return UnavailableError(f"{self.called} cannot be reached for {asked}: {_reason(error)}")


def _reason(error: aiohttp.ClientError) -> str:
    if not isinstance(error, aiohttp.ClientOSError) or error.errno is None:
        return str(error)
    if error.errno > 0:
        return os.strerror(error.errno)
    return str(error.strerror)  # of the name service


def parse_url(url: str) -> URL:
    """The address; raises MetropolisError on what is none."""
    try:
        parsed = URL(url)
    except ValueError:
        parsed = URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise MetropolisError(
            f"{url!r} is not the address of a server; write it like http://127.0.0.1:30000"
        )
    return parsed


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
