"""The agent's interface to its model, bound to one agent at one step."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from copy import copy
from difflib import get_close_matches
from typing import Any, Protocol, TypedDict, TypeVar, Unpack

from metropolis.llm.base import (
    Backend,
    Completion,
    Message,
    Request,
    check_options,
    digest_of,
)
from metropolis.llm.call_log import CallLog, CallRecord, Strand, current_strand, in_strand
from metropolis.llm.model_choice import ModelChoice
from metropolis.types import AgentId, MetropolisError, Step

SEED_BITS = 31
"""Width of a seed that every server accepts."""

T = TypeVar("T")
CallsMade = tuple[CallLog, dict[tuple[str, str], int]]
"""Calls of one agent-step, and how many there are of each function and model input."""


class Options(TypedDict, total=False):
    """Options of a call, of any method."""

    function: str
    """Purpose of the call, as in accounts and traces; default `chat` or `complete`."""
    max_tokens: int
    """Maximum length of the answer; default 256."""
    temperature: float
    """Sampling temperature; default 0.7."""
    stop: Sequence[str]
    """Stop strings: the answer ends before the first of them."""
    json_schema: Mapping[str, Any] | None
    """Schema that the answer must satisfy, if the server supports it."""
    regex: str | None
    """Regular expression that the answer must match, if the server supports it."""
    ignore_eos: bool
    """Whether the answer goes on to `max_tokens`, for benchmarks; SGLang and vLLM support it."""


class Sender(Protocol):
    """Sends the calls of agents: a `metropolis.llm.client.Client`, or a wrapper of one."""

    @property
    def backend(self) -> Backend:
        """The backend that answers the calls."""

    @property
    def models(self) -> ModelChoice:
        """The model of each call."""

    @property
    def failure(self) -> MetropolisError | None:
        """What ends the run: its budget is exhausted, or answers cannot be written."""

    async def call(self, request: Request) -> Completion:
        """The answer to `request`; raises LLMError on failure."""

    def stream(
        self, request: Request, on_end: Callable[[Completion], object]
    ) -> AsyncGenerator[str | Completion, None]:
        """The answer in pieces; see `Client.stream`."""


class LLM:
    """Calls the model for one agent at one step.

    Sampling seeds are keyed by (seed, agent, step, function, model input, occurrence), never by
    order, so an agent-step sends the same requests whatever else runs. The model is not part of the
    key. `program` is the agent's name, by which the client's `models` may choose its model.
    """

    def __init__(
        self,
        client: Sender,
        *,
        agent: AgentId,
        step: Step,
        seed: int,
        priority: int | None = None,
        program: str | None = None,
        speculative: bool = False,
        log: CallLog | None = None,
        keep_text: bool = False,
    ) -> None:
        self.log = CallLog() if log is None else log
        """The calls of the cluster's step."""
        self._strand = self.log.strand()
        """The strand of calls from untracked tasks."""
        self._client = client
        self._agent = agent
        self._step = step
        self._seed = seed
        self._priority = step if priority is None else priority
        self._program = f"agent {agent}" if program is None else program
        self._speculative = speculative
        self._keep_text = keep_text
        self._occurrences: dict[tuple[str, str], int] = {}
        self.waiting = 0
        """Number of outstanding calls."""
        self.active_wall_s = 0.0
        """`time.monotonic` at the end of the latest call."""
        self.has_ended = False
        """Whether it refuses calls: no record of the step would contain them."""

    def end(self) -> None:
        """Refuse further calls."""
        self.has_ended = True

    def continued(self, log: CallLog, *, speculative: bool) -> LLM:
        """The same agent's model later in the step; `log` contains its calls so far."""
        llm = copy(self)
        llm.has_ended = False
        llm.log, llm._strand, llm._speculative = log, log.strand(), speculative
        llm._occurrences = dict(self._occurrences)
        return llm

    @property
    def made(self) -> CallsMade:
        """The calls so far, for `adopt`, as data that can be sent to another process."""
        return CallLog().joined([self.log]), dict(self._occurrences)

    def adopt(self, made: CallsMade) -> None:
        """Take over the calls of the same agent-step's model in another process."""
        log, occurrences = made
        self.log = CallLog(self.log.clock, self.log.instant).joined([log])
        self._strand, self._occurrences = self.log.strand(), dict(occurrences)

    def promote(self) -> None:
        """Send further calls as not speculative."""
        self._speculative = False

    @property
    def calls(self) -> list[CallRecord]:
        """The calls, in the order of sending."""
        return self.log.calls.get(self._agent, [])

    async def chat(
        self,
        messages: str | Sequence[Message],
        **options: Unpack[Options],
    ) -> Completion:
        """The model's answer to a chat; a plain string is one user message.

        Raises LLMError on failure.
        """
        return await self._send(self._request("chat", chat_of(messages), None, options))

    async def complete(
        self,
        prompt: str,
        **options: Unpack[Options],
    ) -> Completion:
        """The model's continuation of `prompt`; raises LLMError on failure."""
        if not isinstance(prompt, str):
            raise MetropolisError(f"the prompt of a completion is {prompt!r}; it must be a string")
        return await self._send(self._request("complete", None, prompt, options))

    async def stream(
        self,
        messages: str | Sequence[Message],
        **options: Unpack[Options],
    ) -> AsyncGenerator[str, None]:
        """The answer to a chat, piece by piece; raises LLMError on failure."""
        request = self._request("stream", chat_of(messages), None, options)
        strand, index = self._record_sent(request)
        has_begun = is_complete = False

        def end(completion: Completion) -> None:  # the reader may leave before the end
            nonlocal is_complete
            is_complete = True
            self._record_ended(index, completion)

        try:
            async with aclosing(self._client.stream(request, end)) as items:
                async for item in items:
                    if not isinstance(item, str):
                        continue
                    if not has_begun:
                        strand.record_answer(index)
                        has_begun = True
                    yield item
        finally:
            if not is_complete:
                self._record_ended(index, None)
            strand.record_answer(index)

    def _request(
        self,
        method: str,
        messages: tuple[Message, ...] | None,
        prompt: str | None,
        options: Options,
    ) -> Request:
        for name in options.keys() - Options.__annotations__.keys():
            raise MetropolisError(f"llm.{method}() has no option {name!r}; {_suggestion(name)}")
        check_options(options, f"llm.{method}()")
        if self.log.is_abandoned:
            raise asyncio.CancelledError
        if self.has_ended:
            raise MetropolisError(
                f"llm.{method}() of {self._program!r} at step {self._step} is called too late: "
                "wait for calls before the end, keep no llm, and use the one that each call of "
                "proceed or answer is given"
            )
        function = options.get("function") or ("complete" if messages is None else "chat")
        max_tokens, temperature = options.get("max_tokens", 256), options.get("temperature", 0.7)
        stop = options.get("stop", ())
        json_schema, regex = options.get("json_schema"), options.get("regex")
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        digest = digest_of(messages, prompt, max_tokens, temperature, stops, json_schema, regex)
        occurrence = self._occurrences.get((function, digest), 0)
        self._occurrences[function, digest] = occurrence + 1
        return Request(
            agent=self._agent,
            step=self._step,
            function=function,
            messages=messages,
            prompt=prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            stop=stops,
            json_schema=json_schema,
            regex=regex,
            seed=sampling_seed(self._seed, self._agent, self._step, function, digest, occurrence),
            priority=self._priority,
            program=self._program,
            upstream=self._current().upstream,
            occurrence=occurrence,
            number=len(self.calls),
            speculative=self._speculative,
            model=self._client.models.of(self._program, function),
            ignore_eos=options.get("ignore_eos", False),
        )

    async def _send(self, request: Request) -> Completion:
        strand, index = self._record_sent(request)
        completion = None
        try:
            with in_strand(None):  # tasks of the backend do not belong to the agent
                completion = await self._client.call(request)
        finally:
            self._record_ended(index, completion)
            strand.record_answer(index)
        return completion

    def _current(self) -> Strand:
        strand = current_strand()
        return self._strand if strand is None or strand.log is not self.log else strand

    def _record_sent(self, request: Request) -> tuple[Strand, int]:
        self.waiting += 1
        strand = self._current()
        prompt = request.text if self._keep_text else None
        model = request.model or self._client.backend.name
        return strand, strand.sent(self._agent, request.function, model, prompt)

    def _record_ended(self, index: int, completion: Completion | None) -> None:
        self.waiting -= 1
        self.active_wall_s = time.monotonic()
        record = self.log.end(index, completion)
        if self._keep_text and completion is not None:
            record.completion = completion.text


def chat_of(messages: str | Sequence[Message]) -> tuple[Message, ...]:
    """The messages of a chat; raises MetropolisError on invalid messages."""
    if isinstance(messages, str):
        return ({"role": "user", "content": messages},)
    if not isinstance(messages, Iterable):
        raise MetropolisError(f"a chat is {messages!r}; it must be a string or a list of messages")
    chat = tuple(messages)
    for number, message in enumerate(chat):
        if (
            not isinstance(message, Mapping)
            or set(message) != {"role", "content"}
            or not all(isinstance(value, str) for value in message.values())
        ):
            raise MetropolisError(
                f"message {number} of a chat is {message!r}; it must have a role and a content, "
                "both strings"
            )
    if not chat:
        raise MetropolisError("a chat has no messages; it needs at least one")
    return tuple({"role": one["role"], "content": one["content"]} for one in chat)  # may change


def _suggestion(name: str) -> str:
    """A suggestion for an unknown option."""
    known = sorted(Options.__annotations__)
    close = get_close_matches(name, known, 1)
    return f"did you mean {close[0]}?" if close else f"its options are {', '.join(known)}"


def sampling_seed(
    seed: int, agent: AgentId, step: Step, function: str, digest: str, occurrence: int
) -> int:
    """The sampling seed of a call: a function of its identity, not of the time of sending.

    `occurrence` is such a function unless tasks that have waited send equal requests (docs/llm.md).
    """
    key = f"{seed} {agent} {step} {occurrence} {digest} {function}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> (64 - SEED_BITS)
