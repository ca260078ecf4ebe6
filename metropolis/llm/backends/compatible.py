"""Any OpenAI-compatible server (vLLM, Ollama, OpenAI, …), over our own HTTP client."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncGenerator, Collection
from typing import Any

from metropolis.llm.api_keys import api_key
from metropolis.llm.backends import wire
from metropolis.llm.backends.connection import LIMITS, AnswerLimits
from metropolis.llm.backends.http import JSONServer, parse_url
from metropolis.llm.backends.promotion_sender import PromotionSender
from metropolis.llm.base import Completion, RefusedError, Request

OPENAI_HOST = "api.openai.com"
SPECULATIVE_PRIORITY = 1 << 30
"""Added to speculative requests, which then rank below every step."""


class Compatible:
    """A backend for the server at `url`, with the key OPENAI_API_KEY if that is set.

    `url` may omit the path `/v1`. `model` None takes the server's only model; `named` are those
    that requests may name. `vllm` sends the extra fields of vLLM as well: the priority, lower first
    (start it with `--scheduling-policy priority`), and a regex. `is_before_engines` says that the
    bodies are for a gateway's engines. `sends_seed` False omits sampling seeds, for servers that
    reject them.
    Answers stay within `limits`. If `check` recognises a metropolis gateway, requests carry
    program, function and step.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        named: Collection[str] = (),
        vllm: bool = False,
        is_before_engines: bool = False,
        sends_seed: bool = True,
        limits: AnswerLimits = LIMITS,
    ) -> None:
        address = parse_url(url)
        if address.path in ("", "/"):
            address = address._replace(path="/v1")
        self.name = model or ""
        self._model, self._named = model, named
        self._vllm, self._sends_seed = vllm, sends_seed
        self._is_before_engines = is_before_engines
        self._length_field = (
            "max_completion_tokens" if address.hostname == OPENAI_HOST else "max_tokens"
        )
        self._url = address.geturl()
        server = JSONServer("the server", self._url, api_key("OPENAI_API_KEY"), limits)
        self._server: wire.ConnectedServer = server
        self._promotions = PromotionSender(server, "promote")
        self.is_external = not vllm and _is_public(address.hostname or "")
        """Whether the server is probably an external API, whose calls cost money."""

    def __str__(self) -> str:
        return self._server.called

    async def check(self) -> None:
        """Request the server's models."""
        models = await wire.models_of(self._server, "models")
        self.name = wire.choose_model(str(self), self._model, models, self._named)

    async def complete(self, request: Request) -> Completion:
        """Return the whole answer; see `metropolis.llm.base.Backend`."""
        return await wire.complete(self._server, path_of(request), self.body_of(request), request)

    def stream(self, request: Request) -> AsyncGenerator[str | Completion, None]:
        """The pieces of the answer, then the whole."""
        return wire.stream(self._server, path_of(request), self.body_of(request), request)

    def promote(self, request: Request) -> None:
        """See Promoter; servers other than a gateway cannot change the rank of a request."""
        if self._server.is_gateway:
            self._promotions.send(request)

    async def close(self) -> None:
        """Close all connections."""
        await self._promotions.cancel()
        await self._server.close()

    def body_of(self, request: Request) -> dict[str, Any]:
        """The body for `completions` (a prompt) or `chat/completions` (a chat)."""
        body: dict[str, Any] = {
            "model": request.model or self.name,
            self._length_field if request.messages else "max_tokens": request.max_tokens,
            "temperature": request.temperature,
        }
        if self._sends_seed:
            body["seed"] = request.seed
        if request.messages is None:
            body["prompt"] = request.prompt
        else:
            body["messages"] = request.messages
        if request.stop:
            body["stop"] = request.stop
        if request.ignore_eos:
            if not (self._vllm or self._server.is_gateway or self._is_before_engines):
                raise self._unsupported("an exact length", request)
            body["ignore_eos"] = True
        if self._vllm:
            return body | _vllm_additions(request)
        if request.regex is not None:
            raise self._unsupported("a regex", request)
        if request.json_schema is not None:
            if request.messages is None:
                raise self._unsupported("a JSON schema without a chat", request)
            body["response_format"] = wire.response_format(request.json_schema)
        return body

    def _unsupported(self, what: str, request: Request) -> RefusedError:
        return RefusedError(
            f"{self} cannot follow {what}, which {request.where} requires; use sglang:URL, or "
            "vllm:URL if it is vLLM"
        )


def path_of(request: Request) -> str:
    """The route of a request."""
    return "completions" if request.messages is None else "chat/completions"


def _vllm_additions(request: Request) -> dict[str, Any]:
    speculative = SPECULATIVE_PRIORITY if request.speculative else 0
    additions: dict[str, Any] = {"priority": request.priority + speculative}
    if request.regex is not None:
        additions["structured_outputs"] = {"regex": request.regex}
    if request.json_schema is not None:
        additions["structured_outputs"] = {"json": dict(request.json_schema)}
    return additions


def _is_public(host: str) -> bool:
    """Whether `host` names a machine of the internet, by its form."""
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return "." in host and not host.endswith((".local", ".internal", ".lan", ".localhost"))
