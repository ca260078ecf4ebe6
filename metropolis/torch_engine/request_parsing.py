"""Requests for chats and completions, from OpenAI's format."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from metropolis.names import first_line
from metropolis.torch_engine.cache_choice import ReuseOrder
from metropolis.torch_engine.generation_request import GenerationRequest
from metropolis.torch_engine.sampling import Sampling
from metropolis.types import MetropolisError

SEED_MAX = 2**63
STOPS_MAX, STOP_CHARACTERS_MAX = 16, 256
"""Every stop is looked for with every token."""
SCHEMA_BYTES_MAX = 32 << 10
"""The time to compile a schema grows with the square of its size."""
ANY_JSON: Mapping[str, Any] = {"type": "object"}
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "top_k": (-1, 0),
    "min_p": (0,),
    "min_tokens": (0,),
    "tools": ([],),
    "functions": ([],),
    "regex": (),
    "structured_outputs": (),
}
"""Fields that the engine does not implement, and the values that change nothing."""


class Part(msgspec.Struct):
    """A piece of a message."""

    type: str
    text: str | None = None


class Message(msgspec.Struct):
    """A message of a chat."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: Any = None

    def plain(self, number: int) -> dict[str, str]:
        """The message as chat templates expect it; raises MetropolisError if it is not text."""
        parts = [] if self.content is None else self.content
        if isinstance(parts, str):
            parts = [Part("text", parts)]
        if self.tool_calls or any(part.type != "text" or part.text is None for part in parts):
            raise MetropolisError(f"messages[{number}] has other parts than text; send text alone")
        return {"role": self.role, "content": "".join(part.text or "" for part in parts)}


class _Schema(msgspec.Struct):
    schema: dict[str, Any]


class _Text(msgspec.Struct, tag="text"):
    schema: None = None


class _AnyJson(msgspec.Struct, tag="json_object"):
    @property
    def schema(self) -> Mapping[str, Any]:
        return ANY_JSON


class _JsonSchema(msgspec.Struct, tag="json_schema"):
    json_schema: _Schema

    @property
    def schema(self) -> Mapping[str, Any]:
        return self.json_schema.schema


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


Stop = Annotated[str, msgspec.Meta(max_length=STOP_CHARACTERS_MAX)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Body(msgspec.Struct):
    """Fields of both routes; fields of no effect on the answer may be absent here."""

    model: str | None = None
    messages: list[Message] | None = None
    prompt: str | list[int] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    top_p: Share | None = None
    seed: Annotated[int, msgspec.Meta(ge=-SEED_MAX, le=SEED_MAX - 1)] | None = None
    stop: Stop | Annotated[list[Stop], msgspec.Meta(max_length=STOPS_MAX)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    response_format: _Text | _AnyJson | _JsonSchema | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, msgspec.Meta(ge=-SEED_MAX, le=SEED_MAX - 1)] | None = None
    rid: str | None = None
    reuse: ReuseOrder | None = None
    # What the engine does not implement: see NEUTRAL.
    n: Any = None
    best_of: Any = None
    echo: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    suffix: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    repetition_penalty: Any = None
    logit_bias: Any = None
    top_k: Any = None
    min_p: Any = None
    min_tokens: Any = None
    tools: Any = None
    functions: Any = None
    regex: Any = None
    structured_outputs: Any = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON schema that the answer follows."""
        return None if self.response_format is None else self.response_format.schema

    @property
    def stops(self) -> list[str]:
        """The texts that end the answer."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [stop for stop in stops if stop]

    def request(self, model: str, prompt: list[int]) -> GenerationRequest:
        """The request for an answer of `model` to the tokens of its prompt."""
        most = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return GenerationRequest(
            model,
            prompt,
            most,
            Sampling(
                1.0 if self.temperature is None else self.temperature,
                1.0 if self.top_p is None else self.top_p,
                self.seed,
            ),
            self.stops,
            self.schema,
            bool(self.ignore_eos),
            self.priority or 0,
            self.reuse,
            self.rid,
        )


def parsed(content: bytes, *, is_chat: bool) -> Body:
    """The fields of a body; raises MetropolisError if one is wrong or cannot be followed."""
    try:
        body = msgspec.json.decode(content, type=Body)
    except (ValueError, RecursionError) as error:
        raise MetropolisError(f"the body cannot be used: {error}") from None
    for field, neutral in NEUTRAL.items():
        value = getattr(body, field)
        if value is not None and value not in neutral:
            raise MetropolisError(f"{field} is not supported by this engine; leave it out")
    if (schema := body.schema) is not None and len(msgspec.json.encode(schema)) > SCHEMA_BYTES_MAX:
        raise MetropolisError(f"the JSON schema has more than {SCHEMA_BYTES_MAX:,} bytes")
    if is_chat and not body.messages:
        raise MetropolisError("messages is missing or empty; send at least one message")
    if not is_chat and not body.prompt:
        raise MetropolisError("prompt is missing or empty; send a text or a list of tokens")
    return body


class PromptReader:
    """Tokens of prompts for a model whose context has `positions` tokens.

    Uses a copy of `tokenizer`, of which the engine's thread has another.
    """

    def __init__(self, tokenizer: Any, positions: int, vocabulary: int) -> None:
        self._tokenizer = copy.deepcopy(tokenizer)
        self._positions, self._vocabulary = positions, vocabulary
        longest = max(map(len, tokenizer.get_vocab()), default=1)
        self._characters_max = positions * longest
        """More characters have more tokens than the context."""

    def read(self, body: Body, *, is_chat: bool) -> list[int]:
        """The tokens of the prompt. Raises MetropolisError if it has none, or unknown ones."""
        if is_chat:
            tokens = self._chat(body.messages or [])
        elif isinstance(body.prompt, str):
            self._check_length(len(body.prompt))
            tokens = self._tokenizer(body.prompt)["input_ids"]
        else:
            tokens = body.prompt or []
        if not tokens:
            raise MetropolisError("the prompt has no tokens; send some text")
        for token in tokens:
            if not 0 <= token < self._vocabulary:
                raise MetropolisError(
                    f"the prompt has the token {token}; they are below {self._vocabulary}"
                )
        return [*tokens]

    def _chat(self, sent: Sequence[Message]) -> Sequence[int]:
        messages = [message.plain(number) for number, message in enumerate(sent)]
        self._check_length(sum(len(message["content"]) for message in messages))
        if self._tokenizer.chat_template is None:
            raise MetropolisError("the model has no chat template; use /v1/completions")
        try:
            tokens: Sequence[int] = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=False
            )
        except Exception as error:  # noqa: BLE001 -- a template is a program of its own
            raise MetropolisError(
                f"the model's chat template refuses these: {first_line(error)}"
            ) from None
        return tokens

    def _check_length(self, characters: int) -> None:
        if characters > self._characters_max:
            raise MetropolisError(
                f"the prompt has {characters:,} characters; the model's context has "
                f"{self._positions:,} tokens"
            )
