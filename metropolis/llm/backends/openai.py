"""Any OpenAI-compatible server (OpenAI, vLLM, Ollama, …) through the `openai` client."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from metropolis.llm.backends.http import CHECK_S, parse_url, refusal, said
from metropolis.llm.base import (
    Completion,
    LLMError,
    MalformedError,
    RefusedError,
    Request,
    UnavailableError,
)
from metropolis.llm.tokens import approximate_tokens
from metropolis.types import MetropolisError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

OPENAI_HOST = "api.openai.com"
NO_KEY = "none"
SPECULATIVE_PRIORITY = 1 << 30
"""Below the priority of any step."""


class OpenAICompatible:
    """A backend before the server at `url`; its key is OPENAI_API_KEY's, if it wants one.

    `url` may leave out the path `/v1`. `model` None takes the only model of a server that serves
    one. With `vllm` the fields vLLM adds are sent too: the priority, lower first, and a regex.
    """

    def __init__(self, url: str, model: str | None = None, *, vllm: bool = False) -> None:
        address = parse_url(url)
        if address.path in ("", "/"):
            address = address / "v1"
        self.name = model or ""
        self._vllm = vllm
        self._limit = "max_completion_tokens" if address.host == OPENAI_HOST else "max_tokens"
        self._called = f"the server at {address.with_user(None).with_query(None)}"
        self._client = _open(str(address))

    def __str__(self) -> str:
        return self._called

    async def check(self) -> None:
        """Ask the server for its models."""
        import openai

        try:
            listed = await self._client.with_options(timeout=CHECK_S).models.list()
        except openai.OpenAIError as error:
            raise self._failure(error, "the check") from error
        models = [model.id for model in listed.data]
        if self.name and self.name not in models:
            raise RefusedError(f"{self} has no model {self.name!r}; it serves {_some(models)}")
        if not self.name and len(models) != 1:
            raise MetropolisError(f"{self} serves {_some(models)}; say which with --model")
        self.name = self.name or models[0]

    async def complete(self, request: Request) -> Completion:
        """The whole answer."""
        import openai

        body = self.body_of(request)
        try:
            answer: Any
            if request.messages is None:
                answer = await self._client.completions.create(**body)
            else:
                answer = await self._client.chat.completions.create(**body)
        except (openai.OpenAIError, ValueError) as error:  # ValueError: not JSON
            raise self._failure(error, request.where) from error
        try:
            choice, usage = answer.choices[0], answer.usage
            text = choice.text if request.messages is None else choice.message.content
            finish = choice.finish_reason
        except (AttributeError, IndexError, TypeError) as error:  # no such fields
            raise self._failure(error, request.where) from error
        return self._completion(text or "", usage, finish, request)

    async def stream(self, request: Request) -> AsyncGenerator[str | Completion, None]:
        """The answer's pieces, and at last the whole."""
        import openai

        create: Any = (
            self._client.completions.create
            if request.messages is None
            else self._client.chat.completions.create
        )
        body = self.body_of(request) | {
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        pieces: list[str] = []
        usage = finish = None
        try:
            async with await create(**body) as events:
                async for event in events:
                    usage = event.usage or usage
                    for choice in event.choices:
                        finish = choice.finish_reason or finish
                        delta = choice.text if request.messages is None else choice.delta.content
                        if delta:
                            pieces.append(delta)
                            yield delta
        except openai.OpenAIError as error:
            raise self._failure(error, request.where) from error
        yield self._completion("".join(pieces), usage, finish, request)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    def body_of(self, request: Request) -> dict[str, Any]:
        """What is sent to `/completions` for a prompt, to `/chat/completions` for a chat."""
        body: dict[str, Any] = {
            "model": self.name,
            self._limit if request.messages else "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
        }
        if request.messages is None:
            body["prompt"] = request.prompt
        else:
            body["messages"] = list(request.messages)
        if request.stop:
            body["stop"] = list(request.stop)
        if self._vllm:
            body["extra_body"] = self._additions(request)
        elif request.regex is not None or (request.json_schema and request.messages is None):
            what = "regex" if request.regex is not None else "JSON schema with a prompt"
            raise RefusedError(
                f"{self} knows no {what}, which {request.where} asks for; use SGLang, or vllm:URL "
                "for a vLLM server"
            )
        elif request.json_schema is not None:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": dict(request.json_schema)},
            }
        return body

    def _additions(self, request: Request) -> dict[str, Any]:
        """The fields of vLLM's own."""
        speculative = SPECULATIVE_PRIORITY if request.speculative else 0
        additions: dict[str, Any] = {"priority": request.priority + speculative}
        if request.regex is not None:
            additions["structured_outputs"] = {"regex": request.regex}
        if request.json_schema is not None:
            additions["structured_outputs"] = {"json": dict(request.json_schema)}
        return additions

    def _completion(
        self, text: str, usage: Any, finish: str | None, request: Request
    ) -> Completion:
        if finish is None:
            raise MalformedError(f"{self} broke off its answer to {request.where}")
        if finish not in ("stop", "length"):
            raise RefusedError(f"{self} ended its answer to {request.where} with {finish!r}")
        if usage is None:  # some servers do not count
            counts = approximate_tokens(request.text), approximate_tokens(text)
        else:
            counts = usage.prompt_tokens, usage.completion_tokens
        return Completion(text, *counts, finish)

    def _failure(self, error: Exception, asked: str) -> LLMError:
        import openai

        if isinstance(error, openai.APIStatusError):
            response = error.response
            reason = said(response.content).replace(self._client.api_key, "…")
            retry_after = response.headers.get("retry-after")
            return refusal(response.status_code, reason, retry_after, self._called, asked)
        if isinstance(error, openai.APIConnectionError):
            cause = error.__cause__ or error
            return UnavailableError(f"{self} cannot be reached for {asked}: {cause}")
        return MalformedError(f"{self} gave a malformed answer to {asked}: {error}")


def _open(url: str) -> AsyncOpenAI:
    try:
        import openai
    except ImportError:
        raise MetropolisError(
            f"{url} needs the openai client: pip install 'metropolis[openai]'"
        ) from None
    key = os.environ.get("OPENAI_API_KEY") or NO_KEY
    return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=None)


def _some(models: list[str]) -> str:
    shown = ", ".join(sorted(models)[:8]) or "no model"
    return shown + (f" and {len(models) - 8} more" if len(models) > 8 else "")
