"""OpenAI-compatible servers through the `openai` client, which supports clouds and proxies.

Its HTTP stack takes many times the CPU time of `compatible` (docs/llm.md). It sends the requests;
answers are read, limited and checked as those of `compatible`. Every call has its own connection,
because the stack takes data after an answer for the answer to the next request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

from metropolis.llm.api_keys import api_key, without
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.backends.connection import LIMITS, AnswerLimitError, AnswerLimits
from metropolis.llm.backends.http import (
    CHECK_S,
    SHOWN_CHARACTERS,
    decode,
    events_in,
    printable,
    reason_in,
    refusal,
)
from metropolis.llm.backends.meter import Meter
from metropolis.llm.base import (
    LLMError,
    MalformedError,
    Request,
    UnavailableError,
    UnreachableError,
)
from metropolis.llm.placement import GATEWAY, PREFIX, headers_of
from metropolis.types import MetropolisError

if TYPE_CHECKING:
    from httpx2 import Request as SentRequest
    from httpx2 import Response
    from openai import AsyncAPIResponse, AsyncOpenAI

KEY = "OPENAI_API_KEY"
NO_KEY = "none"
"""The client requires a key, also for servers without one."""
OK = 200

T = TypeVar("T")


class OpenAIClient(Compatible):
    """Compatible, with requests sent by `openai.AsyncOpenAI`, without its retries.

    Raises MetropolisError when the `openai` package is missing.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        named: Collection[str] = (),
        sends_seed: bool = True,
        limits: AnswerLimits = LIMITS,
    ) -> None:
        super().__init__(url, model, named=named, sends_seed=sends_seed, limits=limits)
        self._gateway = self._server  # takes the promotions, for which the client has no route
        self._server = _Server(self._url, self._server.called, limits)

    async def close(self) -> None:
        """Close all connections."""
        await super().close()
        await self._gateway.close()


class _Server:
    """See wire.Server."""

    def __init__(self, url: str, called: str, limits: AnswerLimits) -> None:
        self._url, self.called, self._limits = url, called, limits
        self.meter = Meter(called)
        self.is_gateway = False
        self._client = _open(url, limits)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the client, which belongs to this process."""
        return vars(self) | {"_client": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Create a new client in another process."""
        vars(self).update(state)
        self._client = _open(self._url, self._limits)

    def without_key(self, text: str) -> str:
        """See wire.Server."""
        return without(api_key(KEY), text)

    async def get(self, path: str, form: type[T]) -> T:  # noqa: ARG002 -- the client has one route
        """See wire.Server; always lists the models."""
        listing = self._client.models.with_streaming_response.list()
        try:
            async with asyncio.timeout(CHECK_S), self._exchange(listing, "the check") as answer:
                content = await self._content(answer)
                self.is_gateway = GATEWAY in answer.headers
        except TimeoutError:
            raise UnavailableError(
                f"{self.called} did not answer within {CHECK_S:g} s; is the address right?"
            ) from None
        return decode(content, form, self.called, "the check")

    async def post(self, path: str, body: Any, form: type[T], request: Request) -> T:
        """See wire.Server."""
        async with self._exchange(self._create(path, body, request), request.where) as answer:
            content = await self._content(answer)
        return decode(content, form, self.called, request.where)

    async def events(
        self, path: str, body: Any, form: type[T], request: Request
    ) -> AsyncGenerator[T, None]:
        """See wire.Server."""
        async with self._exchange(self._create(path, body, request), request.where) as answer:
            pieces = answer.iter_bytes()
            async for event in events_in(pieces, form, self.called, request.where, self._limits):
                yield event

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    def _create(
        self, path: str, body: Any, request: Request
    ) -> AbstractAsyncContextManager[AsyncAPIResponse[Any]]:
        headers: Any = {}
        if self.is_gateway:
            headers = {name: quote(value) for name, value in headers_of(request).items()}
        extra = {"ignore_eos": body.pop("ignore_eos")} if "ignore_eos" in body else None
        client = self._client
        route: Any = client.completions if path == "completions" else client.chat.completions
        response: AbstractAsyncContextManager[AsyncAPIResponse[Any]]
        response = route.with_streaming_response.create(
            **body, extra_headers=headers, extra_body=extra
        )
        return response

    async def _content(self, answer: AsyncAPIResponse[Any]) -> bytes:
        content = bytearray()
        async for piece in answer.iter_bytes():
            content += piece
            _check(len(content), self._limits)
        return bytes(content)

    @asynccontextmanager
    async def _exchange(
        self, sending: AbstractAsyncContextManager[AsyncAPIResponse[Any]], where: str
    ) -> AsyncGenerator[AsyncAPIResponse[Any], None]:
        """The answer, once its headers have arrived; raises LLMError on every failure."""
        import httpx2
        import openai

        try:
            async with sending as answer:
                yield answer
        except AnswerLimitError as error:
            raise MalformedError(f"{self.called} gave an answer to {where} that {error}") from None
        except openai.APIStatusError as error:
            raise self._refusal(error, where) from None
        except (openai.APIConnectionError, httpx2.ConnectError) as error:
            cause = error.__cause__ or error
            kind = (
                UnreachableError
                if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout)
                else UnavailableError
            )
            reason = printable(str(cause), SHOWN_CHARACTERS)
            raise kind(f"{self.called} cannot be reached for {where}: {reason}") from None
        except (openai.OpenAIError, httpx2.HTTPError, httpx2.StreamError) as error:
            reason = printable(str(error), SHOWN_CHARACTERS)
            raise MalformedError(
                f"{self.called} broke off its answer to {where}: {reason}"
            ) from None

    def _refusal(self, error: Any, where: str) -> LLMError:
        reason = self.without_key(reason_in(error.response.content))
        retry_after = error.response.headers.get("retry-after")
        path = error.request.url.path
        return refusal(error.response.status_code, reason, retry_after, self.called, where, path)


def _open(url: str, limits: AnswerLimits) -> AsyncOpenAI:
    try:
        import httpx2
        import openai
    except ImportError:
        raise MetropolisError(
            f"openai:{url} needs the openai client: pip install 'metropolis[openai]'"
        ) from None
    key = api_key(KEY) or NO_KEY
    return openai.AsyncOpenAI(
        base_url=url,
        api_key=key,
        max_retries=0,
        timeout=None,
        default_headers={"Accept-Encoding": "identity"},
        http_client=openai.DefaultAsyncHttpxClient(
            timeout=None,
            follow_redirects=False,  # a server could lead requests, and the key, anywhere
            limits=httpx2.Limits(max_keepalive_connections=0),
            event_hooks={"request": [_write_names], "response": [_limiting(limits)]},
        ),
    )


async def _write_names(request: SentRequest) -> None:
    """Encode the gateway's headers in UTF-8; the client accepts only ASCII."""
    request.headers.encoding = "utf-8"
    for name in request.headers:
        if name.startswith(PREFIX.lower()):
            request.headers[name] = unquote(request.headers[name])


def _limiting(limits: AnswerLimits) -> Callable[[Response], Awaitable[None]]:
    """A hook that limits the answers which the client itself reads: errors and redirects."""
    import httpx2

    class Limited(httpx2.AsyncByteStream):
        def __init__(self, stream: httpx2.AsyncByteStream) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            received_bytes = 0
            async for piece in self._stream:
                received_bytes += len(piece)
                _check(received_bytes, limits)
                yield piece

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def limit(response: Response) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise AnswerLimitError("is compressed, which was not requested")
        if response.status_code != OK and isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = Limited(response.stream)

    return limit


def _check(received_bytes: int, limits: AnswerLimits) -> None:
    if received_bytes > limits.body_bytes:
        raise AnswerLimitError(f"is longer than {limits.body_bytes:,} bytes")
