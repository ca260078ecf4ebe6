"""The same servers through the `openai` client, for what that knows of clouds and proxies.

Its HTTP stack takes many times the processor time of `compatible` (docs/llm.md).
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.backends.http import CHECK_S, refusal, said
from metropolis.llm.backends.wire import Counts, completion_of
from metropolis.llm.base import (
    Completion,
    LLMError,
    MalformedError,
    Request,
    UnavailableError,
    UnreachableError,
)
from metropolis.types import MetropolisError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

NO_KEY = "none"


class OpenAIClient(Compatible):
    """Compatible, with every request sent by `openai.AsyncOpenAI`; retries stay with the Client.

    Raises MetropolisError when the `openai` package is missing.
    """

    def __init__(self, url: str, model: str | None = None) -> None:
        super().__init__(url, model)
        self._client = _open(self._server.url.geturl())

    def __getstate__(self) -> dict[str, Any]:
        """The client belongs to this process."""
        return vars(self) | {"_client": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin anew in another process."""
        vars(self).update(state)
        self._client = _open(self._server.url.geturl())

    async def complete(self, request: Request) -> Completion:
        """The whole answer."""
        import openai

        body = self.body_of(request)
        try:
            answer: Any = await self._create(request, body)
        except (openai.OpenAIError, ValueError) as error:  # ValueError: not JSON
            raise self._failure(error, request.where) from error
        try:
            choice, counts = answer.choices[0], _counts(answer.usage)
            text = choice.text if request.messages is None else choice.message.content
            finish = choice.finish_reason
        except (AttributeError, IndexError, TypeError) as error:  # no such fields
            raise self._failure(error, request.where) from error
        return completion_of(str(self), text or "", counts, finish, request)

    async def stream(self, request: Request) -> AsyncGenerator[str | Completion, None]:
        """The answer's pieces, and at last the whole."""
        import openai

        body = self.body_of(request)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        pieces: list[str] = []
        counts = finish = None
        try:
            async with await self._create(request, body) as events:
                async for event in events:
                    counts = _counts(event.usage) or counts
                    for choice in event.choices:
                        finish = choice.finish_reason or finish
                        piece = choice.text if request.messages is None else choice.delta.content
                        if piece:
                            pieces.append(piece)
                            yield piece
        except openai.OpenAIError as error:
            raise self._failure(error, request.where) from error
        yield completion_of(str(self), "".join(pieces), counts, finish, request)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def _create(self, request: Request, body: dict[str, Any]) -> Any:
        if request.messages is None:
            return await self._client.completions.create(**body)
        return await self._client.chat.completions.create(**body)

    async def _models(self) -> list[str]:
        import openai

        try:
            listed = await self._client.with_options(timeout=CHECK_S).models.list()
        except openai.OpenAIError as error:
            raise self._failure(error, "the check") from error
        return [model.id for model in listed.data]

    def _failure(self, error: Exception, asked: str) -> LLMError:
        import openai

        if isinstance(error, openai.APIStatusError):
            response = error.response
            reason = said(response.content).replace(self._client.api_key, "…")
            retry_after = response.headers.get("retry-after")
            return refusal(response.status_code, reason, retry_after, str(self), asked)
        if isinstance(error, openai.APIConnectionError):
            cause = error.__cause__ or error
            nobody = type(cause).__name__ == "ConnectError"  # of the HTTP library that openai uses
            kind = UnreachableError if nobody else UnavailableError
            return kind(f"{self} cannot be reached for {asked}: {cause}")
        return MalformedError(f"{self} gave a malformed answer to {asked}: {error}")


def _open(url: str) -> AsyncOpenAI:
    try:
        import openai
    except ImportError:
        raise MetropolisError(
            f"openai:{url} needs the openai client: pip install 'metropolis[openai]'"
        ) from None
    key = os.environ.get("OPENAI_API_KEY") or NO_KEY
    return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=None)


def _counts(usage: Any) -> Counts | None:
    return None if usage is None else Counts(usage.prompt_tokens, usage.completion_tokens)
