"""The interface to language models: requests, completions, errors, and backends.

A backend sends one request once. Queueing, limits, budgets, retries and accounting belong to
`metropolis.llm.client`, which is the same for every backend.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple, Protocol, TypedDict, runtime_checkable

import msgspec

from metropolis.names import cut
from metropolis.types import AgentId, MetropolisError, Step


class Message(TypedDict):
    """One turn of a chat; `role` is `system`, `user` or `assistant`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One model call by one agent at one step: a chat (`messages`) or a plain `prompt`.

    `priority`: lower runs first. `program` owns the chain of requests that this one belongs to.
    `upstream` is the function whose answer triggered it, None for the first calls of an agent-step.
    `model` None is the backend's own.
    `occurrence` numbers the requests within the agent-step whose model input is equal, in the order
    of sending; `number` numbers all of them. `json_schema` and `regex` constrain the answer if the
    server supports them. With `ignore_eos` the answer has exactly `max_tokens` tokens.
    """

    agent: AgentId
    step: Step
    function: str
    messages: tuple[Message, ...] | None = None
    prompt: str | None = None
    max_tokens: int
    temperature: float
    stop: tuple[str, ...] = ()
    json_schema: Mapping[str, Any] | None = None
    regex: str | None = None
    seed: int
    priority: int
    program: str
    upstream: str | None = None
    occurrence: int = 0
    number: int = 0
    speculative: bool = False
    model: str | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if (self.messages is None) == (self.prompt is None):
            raise MetropolisError(f"{self.where}: give either messages or a prompt")
        if self.json_schema is not None and self.regex is not None:
            raise MetropolisError(f"{self.where}: give either a json_schema or a regex, not both")
        if "" in self.stop:
            raise MetropolisError(f"{self.where}: stop contains an empty string; remove it")
        if self.max_tokens < 1:
            raise MetropolisError(
                f"{self.where}: max_tokens is {self.max_tokens}; it must be at least 1"
            )

    @property
    def where(self) -> str:
        """The name of this request in errors."""
        return f"{self.function} of {self.program!r} at step {self.step}"

    @property
    def text(self) -> str:
        """All the text the model reads."""
        if self.prompt is not None:
            return self.prompt
        return "\n".join(message["content"] for message in self.messages or ())

    @property
    def digest(self) -> str:
        """SHA-256 of the model input and the model, independent of agent and step."""
        digest = digest_of(
            self.messages,
            self.prompt,
            self.max_tokens,
            self.temperature,
            self.stop,
            self.json_schema,
            self.regex,
        )
        if self.ignore_eos:
            digest = hashlib.sha256(f"{digest} ignore_eos".encode()).hexdigest()
        if self.model is None:
            return digest
        return hashlib.sha256(f"{digest} {self.model}".encode()).hexdigest()


def check_options(options: Mapping[str, Any], where: str) -> None:
    """Raise MetropolisError on an option with a value of another type; `where` begins it."""
    for name, value in options.items():
        is_right, right = _OPTIONS[name]
        if not is_right(value):
            raise MetropolisError(f"{where}: {name} is {cut(value)}; it should be {right}")


def _is_texts(value: Any) -> bool:
    one_by_one = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return isinstance(value, str) or (one_by_one and all(isinstance(one, str) for one in value))


_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "function": (lambda value: isinstance(value, str), "a text"),
    "max_tokens": (lambda value: type(value) is int, "a whole number"),
    "temperature": (
        lambda value: isinstance(value, int | float) and 0 <= value < inf,
        "a number of at least 0",
    ),
    "stop": (_is_texts, "a text or a list of texts"),
    "json_schema": (lambda value: value is None or isinstance(value, Mapping), "a dictionary"),
    "regex": (lambda value: value is None or isinstance(value, str), "a text"),
    "ignore_eos": (lambda value: isinstance(value, bool), "True or False"),
}


def digest_of(
    messages: tuple[Message, ...] | None,
    prompt: str | None,
    max_tokens: int,
    temperature: float,
    stop: tuple[str, ...],
    json_schema: Mapping[str, Any] | None,
    regex: str | None,
) -> str:
    """SHA-256, in hexadecimal, of the model input.

    A schema counts with the order of its fields, because constrained decoding follows it.
    """
    chat = None if messages is None else [(m["role"], m["content"]) for m in messages]
    seen = (chat, prompt, max_tokens, float(temperature), stop, json_schema, regex)
    return hashlib.sha256(msgspec.json.encode(seen)).hexdigest()


class Service(NamedTuple):
    """How a completion was served."""

    instance: int
    duration_s: float
    """Time from its start on the instance, after queueing, to its end."""


class _Served:
    """Keeps a completion's service out of its fields: answers are stored and compared without."""

    __slots__ = ("_service",)


@dataclass(frozen=True, slots=True)
class Completion(_Served):
    """A model's answer. `finish_reason` is `stop`, or `length` if max_tokens truncated it."""

    text: str
    prompt_tokens: int
    output_tokens: int
    finish_reason: str

    @property
    def service(self) -> Service | None:
        """How it was served; None: not known, or it was paid for before."""
        return getattr(self, "_service", None)

    def with_service(self, service: Service | None) -> Completion:
        """A copy that was served so."""
        copy = Completion(self.text, self.prompt_tokens, self.output_tokens, self.finish_reason)
        object.__setattr__(copy, "_service", service)
        return copy

    def json(self) -> Any:
        """The text parsed as JSON; raises NotJSONError when it is not JSON."""
        try:
            return msgspec.json.decode(self.text)
        except (ValueError, msgspec.DecodeError, RecursionError) as error:
            cut = " (truncated at max_tokens)" if self.finish_reason == "length" else ""
            raise NotJSONError(
                f"the model's answer is not JSON{cut}: {error}: {self.text[:80]!r}"
            ) from None


class LLMError(MetropolisError):
    """A call failed; the message is one sentence with server, function, agent and step."""

    tokens: tuple[int, int] | None = None
    """The tokens of the prompt and of an answer that was generated and cannot be used."""

    def __init__(self, sentence: str, retry_after_s: float | None = None) -> None:
        super().__init__(sentence)
        self.retry_after_s = retry_after_s
        """The server's Retry-After, if it sent one."""


class UnavailableError(LLMError):
    """The server cannot be reached, or failed (5xx), after all retries."""


class UnreachableError(UnavailableError):
    """No server answers at the address: it may be down for a while."""


class TimedOutError(LLMError):
    """The answer did not arrive in time, after all retries."""


class RateLimitedError(LLMError):
    """The server limits the rate (429)."""


class RefusedError(LLMError):
    """The server will never accept this request (4xx): a bad request, key, model or address."""


class MalformedError(LLMError):
    """The answer violates the protocol or the request's format, after all retries."""


class NotJSONError(MalformedError):
    """The text of an answer is not JSON (`Completion.json`)."""


class BudgetExhausted(LLMError):  # noqa: N818 -- the end of a budget is not an error
    """The call was not sent: it could have exceeded the run's budget of tokens or money."""


OnPiece = Callable[[str], None]
"""Receives each piece of an answer as it arrives."""
RETRIED = (UnavailableError, TimedOutError, RateLimitedError, MalformedError)
"""Errors that may be temporary."""


class Backend(Protocol):
    """One language model at one address; sends each request once.

    `str(backend)` is its name in errors: kind and address, never a secret. A failed request raises
    an LLMError; errors of the classes in RETRIED may be retried. Cancelling a request's task aborts
    the request on the server if the server supports that.
    """

    @property
    def name(self) -> str:
        """The model's name, as in traces; known after `check`."""

    async def check(self) -> None:
        """Raise LLMError, within seconds, if the server is unreachable or the model unknown."""

    async def complete(self, request: Request) -> Completion:
        """Return the whole answer."""

    def stream(self, request: Request) -> AsyncGenerator[str | Completion, None]:
        """The pieces of the answer as they arrive, then the whole Completion."""

    async def close(self) -> None:
        """Close the connections; send nothing afterwards."""


async def answer_of(backend: Backend, request: Request, on_piece: OnPiece | None) -> Completion:
    """The answer of `backend`; with `on_piece`, it is streamed.

    Raises LLMError if the backend does not keep its interface.
    """
    completion: Any
    if on_piece is None:
        completion = backend.complete(request)
        if isinstance(completion, Completion):
            raise LLMError(
                f"{type(backend).__name__}.complete is a plain function; it should be an async one"
            )
        completion = await completion
    else:
        completion = None
        async for item in backend.stream(request):
            if isinstance(item, str):
                on_piece(item)
            else:
                completion = item
        if completion is None:
            raise MalformedError(f"{backend} broke off its answer to {request.where}")
    if isinstance(completion, Completion) and isinstance(completion.text, str):
        tokens = completion.prompt_tokens, completion.output_tokens
        if all(type(count) is int and count >= 0 for count in tokens):
            return completion
    raise LLMError(
        f"{backend} answered with {cut(completion, 200)}; it should be a Completion with a text "
        "and numbers of tokens of at least 0"
    )


@runtime_checkable
class Promoter(Protocol):
    """A backend with a queue, in which speculative requests rank below all others."""

    def promote(self, request: Request) -> None:
        """Rank the waiting requests of the agent-step of `request` like others: it is needed."""
