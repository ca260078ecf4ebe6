"""The gateway as the backend of a run in the same process: engines, a policy, a dispatcher."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeVar

import msgspec

from metropolis.dispatch.base import Dispatcher
from metropolis.gateway.admission import Admission, QueueFullError
from metropolis.gateway.asked import PREFIX
from metropolis.gateway.engine import Engine, Reply
from metropolis.gateway.relay import Gateway
from metropolis.gateway.relayed import Relayed
from metropolis.llm.backends import wire
from metropolis.llm.backends.compatible import SPECULATIVE_PRIORITY, Compatible, path_of
from metropolis.llm.backends.http import decode, events_in, refusal, said
from metropolis.llm.base import Completion, RateLimitedError, Request
from metropolis.policy.base import Policy
from metropolis.types import MetropolisError

IDLE_S = 60.0
QUEUE_LIMIT = 1 << 20
"""The client holds back what is too much."""
RETRY_S = 1.0

T = TypeVar("T")


class InProcess:
    """A backend before the engines that `specs` name, as `metropolis gateway` has them.

    `at_once` requests are at an engine at most. The key of the engines, if they want one, is
    OPENAI_API_KEY's. Requests carry their program, function and step.
    """

    def __init__(
        self,
        specs: Sequence[str],
        policy: Policy,
        dispatcher: Dispatcher,
        model: str | None = None,
        at_once: int = 256,
    ) -> None:
        engines = [Engine(spec) for spec in specs]
        self._called = f"the gateway before {', '.join(engine.name for engine in engines)}"
        self.gateway = Gateway(engines, Admission(policy, dispatcher, at_once, QUEUE_LIMIT), IDLE_S)
        self._wanted, self.name = model, model or ""
        self._started: asyncio.Task[None] | None = None
        key = os.environ.get("OPENAI_API_KEY")
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"

    def __str__(self) -> str:
        return self._called

    def __getstate__(self) -> NoReturn:
        raise MetropolisError(
            "a gateway in this process has no workers elsewhere; start `metropolis gateway` and "
            "give them its URL"
        )

    async def check(self) -> None:
        """Ask an engine for its models."""
        front = await self._front(self._headers)
        self.name = wire.choose_model(
            str(self), self._wanted, await wire.models_of(front, "models")
        )

    async def complete(self, request: Request) -> Completion:
        """The whole answer."""
        front = await self._front(self._headers_of(request))
        return await wire.ask(front, path_of(request), self._body_of(request), request)

    async def stream(self, request: Request) -> AsyncGenerator[str | Completion, None]:
        """The answer's pieces, and at last the whole."""
        front = await self._front(self._headers_of(request))
        async for item in wire.stream(front, path_of(request), self._body_of(request), request):
            yield item

    async def close(self) -> None:
        """Close all connections."""
        await self.gateway.close()

    async def _front(self, headers: dict[str, str]) -> _Front:
        if self._started is None:
            self._started = asyncio.ensure_future(self.gateway.start())
        await asyncio.shield(self._started)
        return _Front(self.gateway, headers, str(self))

    def _headers_of(self, request: Request) -> dict[str, str]:
        step = request.step + (SPECULATIVE_PRIORITY if request.speculative else 0)
        return self._headers | {
            f"{PREFIX}Program": request.program,
            f"{PREFIX}Function": request.function,
            f"{PREFIX}Step": str(step),
        }

    def _body_of(self, request: Request) -> dict[str, Any]:
        return Compatible("http://gateway", self.name).body_of(request)


class _Front:
    """The gateway, as `wire` asks a server."""

    def __init__(self, gateway: Gateway, headers: dict[str, str], called: str) -> None:
        self._gateway, self._headers, self.called = gateway, headers, called

    async def get(self, path: str, form: type[T]) -> T:
        """See wire.Server."""
        reply = await self._gateway.get(f"/v1/{path}", self._headers)
        reply.close()
        if reply.status != 200:
            raise self._refusal(reply, "the check")
        return decode(reply.whole or b"", form, self.called, "the check")

    async def post(self, path: str, body: Any, form: type[T], asked: str) -> T:
        """See wire.Server."""
        async with self._relayed(path, body, asked) as relayed:
            return decode(relayed.reply.whole or b"", form, self.called, asked)

    async def events(
        self, path: str, body: Any, form: type[T], asked: str
    ) -> AsyncGenerator[T, None]:
        """See wire.Server."""
        async with self._relayed(path, body, asked) as relayed:
            pieces = relayed.pieces()
            async for event in events_in(pieces, form, self.called, asked):
                yield event
            async for _ in pieces:  # up to the proper end
                pass

    @asynccontextmanager
    async def _relayed(self, path: str, body: Any, asked: str) -> AsyncIterator[Relayed]:
        content = msgspec.json.encode(body)
        try:
            async with self._gateway.reply_to(f"/v1/{path}", self._headers, content) as relayed:
                reply = relayed.reply
                if reply.status != 200:
                    raise self._refusal(reply, asked)
                yield relayed
        except QueueFullError as error:
            raise RateLimitedError(str(error), RETRY_S) from None

    def _refusal(self, reply: Reply, asked: str) -> Exception:
        retry_after = dict(reply.headers).get("retry-after")
        return refusal(reply.status, said(reply.whole or b""), retry_after, self.called, asked)
