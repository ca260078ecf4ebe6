"""What an agent gets to ask its model with, bound to one agent at one step."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, Unpack

from metropolis.llm.base import Completion, Message, Request, digest_of
from metropolis.llm.client import Client
from metropolis.types import AgentId, MetropolisError, Step

SEED_BITS = 31
"""What every server takes as a seed."""

T = TypeVar("T")


class Options(TypedDict, total=False):
    """What may be said of a call, whatever its form."""

    function: str
    """What the call is for, as accounts and traces tell it; else `chat` or `complete`."""
    max_tokens: int
    """Where the answer is cut off; else 256."""
    temperature: float
    """Of the sampling; else 0.7."""
    stop: Sequence[str]
    """Texts before which the answer ends."""
    json_schema: Mapping[str, Any] | None
    """What the answer must be an instance of, where the server can."""
    regex: str | None
    """What the answer must match, where the server can."""


@dataclass(slots=True)
class CallRecord:
    """One call of an agent-step, as a trace keeps it.

    `parents` are the positions, in the agent-step, of the calls it can have waited for: those
    completed before it was sent, less the ancestors of others among them. Times are those of the
    clock given to LLM; `sent` is when the agent asked. `prompt` and `completion` are None unless
    texts are kept; a call that `failed`, or whose stream was left early, has no completion and no
    tokens.
    """

    function: str
    model: str
    parents: tuple[int, ...]
    sent: float
    completed: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    prompt: str | None = None
    completion: str | None = None
    failed: bool = False


class CallLog:
    """The calls of an agent-step in the order of sending, and which of them waited for which."""

    def __init__(self) -> None:
        self.calls: list[CallRecord] = []
        self._ancestors: list[int] = []  # per call, a bit for every call completed before it
        self._completed = 0

    def sent(self, function: str, model: str, now_s: float, prompt: str | None) -> int:
        """A call is sent; returns its index."""
        before = self._completed
        indirect = 0
        for index, ancestors in enumerate(self._ancestors):
            if before >> index & 1:
                indirect |= ancestors
        direct = before & ~indirect
        parents = tuple(index for index in range(len(self.calls)) if direct >> index & 1)
        self.calls.append(CallRecord(function, model, parents, now_s, prompt=prompt))
        self._ancestors.append(before)
        return len(self.calls) - 1

    def completed(self, index: int, completion: Completion | None, now_s: float) -> CallRecord:
        """The call has been answered; None: it has failed."""
        self._completed |= 1 << index
        record = self.calls[index]
        record.completed = now_s
        if completion is None:
            record.failed = True
        else:
            record.prompt_tokens = completion.prompt_tokens
            record.output_tokens = completion.output_tokens
        return record


class LLM:
    """Asks the model for one agent at one step.

    Sampling seeds are keyed by (seed, agent, step, function, what is asked, occurrence), never by
    order, so the same agent-step asks the same thing whatever else is going on.
    """

    def __init__(
        self,
        client: Client,
        *,
        agent: AgentId,
        step: Step,
        seed: int,
        priority: int | None = None,
        program: str | None = None,
        speculative: bool = False,
        clock: Callable[[], float] = time.monotonic,
        keep_text: bool = False,
    ) -> None:
        self._log = CallLog()
        self._client = client
        self._agent = agent
        self._step = step
        self._seed = seed
        self._priority = step if priority is None else priority
        self._program = f"agent {agent}" if program is None else program
        self._speculative = speculative
        self._clock = clock
        self._keep_text = keep_text
        self._occurrences: dict[tuple[str, str], int] = {}

    @property
    def calls(self) -> list[CallRecord]:
        """What has been asked, in the order of asking."""
        return self._log.calls

    def logged_with(self, other: LLM) -> LLM:
        """The same agent's, its calls from now on among those of `other`: one chain of calls."""
        joined = copy(self)
        joined._log = other._log
        return joined

    async def chat(
        self,
        messages: str | Sequence[Message],
        **options: Unpack[Options],
    ) -> Completion:
        """The model's answer to a chat; a plain string is one message of the user.

        Raises LLMError when there is none.
        """
        return await self._send(self._request(chat_of(messages), None, **options))

    async def complete(
        self,
        prompt: str,
        **options: Unpack[Options],
    ) -> Completion:
        """How the model continues `prompt`; raises LLMError when it does not."""
        return await self._send(self._request(None, prompt, **options))

    async def stream(
        self,
        messages: str | Sequence[Message],
        **options: Unpack[Options],
    ) -> AsyncGenerator[str, None]:
        """The answer to a chat, piece by piece; raises LLMError when it breaks off."""
        request = self._request(chat_of(messages), None, **options)
        index = self._sent(request)
        completion = None
        try:
            async with aclosing(self._client.stream(request)) as items:
                async for item in items:
                    if isinstance(item, str):
                        yield item
                    else:
                        completion = item
        finally:
            self._answered(index, completion)

    def _request(
        self,
        messages: tuple[Message, ...] | None,
        prompt: str | None,
        *,
        function: str | None = None,
        max_tokens: int = 256,
        temperature: float = 0.7,
        stop: Sequence[str] = (),
        json_schema: Mapping[str, Any] | None = None,
        regex: str | None = None,
    ) -> Request:
        if function is None:
            function = "complete" if messages is None else "chat"
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
            occurrence=occurrence,
            speculative=self._speculative,
        )

    async def _send(self, request: Request) -> Completion:
        index = self._sent(request)
        completion = None
        try:
            completion = await self._client.call(request)
        finally:
            self._answered(index, completion)
        return completion

    def _sent(self, request: Request) -> int:
        prompt = request.text if self._keep_text else None
        return self._log.sent(request.function, self._client.backend.name, self._clock(), prompt)

    def _answered(self, index: int, completion: Completion | None) -> None:
        record = self._log.completed(index, completion, self._clock())
        if self._keep_text and completion is not None:
            record.completion = completion.text


class BlockingLLM:
    """The same for plain agents, which run in threads: every call waits in this thread.

    The calls run on `loop`, which must run in another thread. `on_block` and `on_unblock` are
    called on that loop when a call begins to wait and before its thread goes on; of calls that wait
    together, from threads of the agent's own, by the first and by the last.
    """

    def __init__(
        self,
        llm: LLM,
        loop: asyncio.AbstractEventLoop,
        *,
        on_block: Callable[[], None] = lambda: None,
        on_unblock: Callable[[], None] = lambda: None,
    ) -> None:
        self._llm = llm
        self._loop = loop
        self._on_block = on_block
        self._on_unblock = on_unblock
        self._waiting = 0

    @property
    def calls(self) -> list[CallRecord]:
        """What has been asked, in the order of asking."""
        return self._llm.calls

    def chat(self, messages: str | Sequence[Message], **options: Unpack[Options]) -> Completion:
        """As LLM.chat, with the same options."""
        return self._wait(self._llm.chat(messages, **options))

    def complete(self, prompt: str, **options: Unpack[Options]) -> Completion:
        """As LLM.complete, with the same options."""
        return self._wait(self._llm.complete(prompt, **options))

    def stream(
        self, messages: str | Sequence[Message], **options: Unpack[Options]
    ) -> Iterator[str]:
        """As LLM.stream, with the same options."""
        pieces = self._llm.stream(messages, **options)

        async def following() -> str | None:
            return await anext(pieces, None)

        try:
            while (piece := self._wait(following())) is not None:
                yield piece
        finally:
            self._wait(pieces.aclose())

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(self._hooked(coroutine), self._loop).result()

    async def _hooked(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._waiting += 1
        if self._waiting == 1:
            self._on_block()
        try:
            return await coroutine
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._on_unblock()


def chat_of(messages: str | Sequence[Message]) -> tuple[Message, ...]:
    """The messages of a chat; raises MetropolisError on what is none."""
    if isinstance(messages, str):
        return ({"role": "user", "content": messages},)
    chat = tuple(messages)
    for number, message in enumerate(chat):
        if set(message) != {"role", "content"} or not isinstance(message["content"], str):
            raise MetropolisError(
                f"message {number} of a chat is {message!r}; it must have a role and a content, "
                "both text"
            )
    if not chat:
        raise MetropolisError("a chat has no messages; it needs at least one")
    return chat


def sampling_seed(
    seed: int, agent: AgentId, step: Step, function: str, digest: str, occurrence: int
) -> int:
    """The seed a call is sampled with: a function of what it is, never of when it is sent."""
    key = f"{seed} {agent} {step} {occurrence} {digest} {function}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> (64 - SEED_BITS)
