"""What an agent gets to ask its model with, bound to one agent at one step."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from difflib import get_close_matches
from typing import Any, TypedDict, TypeVar, Unpack

from metropolis.llm.base import Completion, Message, Request, digest_of
from metropolis.llm.call_log import CallLog, CallRecord, Strand, current_strand, following
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
        log: CallLog | None = None,
        keep_text: bool = False,
    ) -> None:
        self._log = CallLog() if log is None else log
        self._strand = self._log.strand()
        """Of calls from tasks that are not followed."""
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
        """Calls that are not answered."""
        self.heard_wall_s = 0.0
        """When the last one was, by `time.monotonic`."""

    @property
    def calls(self) -> list[CallRecord]:
        """What has been asked, in the order of asking."""
        return self._log.calls.get(self._agent, [])

    async def chat(
        self,
        messages: str | Sequence[Message],
        **options: Unpack[Options],
    ) -> Completion:
        """The model's answer to a chat; a plain string is one message of the user.

        Raises LLMError when there is none.
        """
        return await self._send(self._request("chat", chat_of(messages), None, options))

    async def complete(
        self,
        prompt: str,
        **options: Unpack[Options],
    ) -> Completion:
        """How the model continues `prompt`; raises LLMError when it does not."""
        return await self._send(self._request("complete", None, prompt, options))

    async def stream(
        self,
        messages: str | Sequence[Message],
        **options: Unpack[Options],
    ) -> AsyncGenerator[str, None]:
        """The answer to a chat, piece by piece; raises LLMError when it breaks off."""
        request = self._request("stream", chat_of(messages), None, options)
        strand, index = self._sent(request)
        is_heard = is_whole = False

        def end(completion: Completion) -> None:  # perhaps before the reader knows, who may leave
            nonlocal is_whole
            is_whole = True
            self._ended(index, completion)

        try:
            async with aclosing(self._client.stream(request, end)) as items:
                async for item in items:
                    if not isinstance(item, str):
                        continue
                    if not is_heard:
                        strand.hear(index)
                        is_heard = True
                    yield item
        finally:
            if not is_whole:
                self._ended(index, None)
            strand.hear(index)

    def _request(
        self,
        method: str,
        messages: tuple[Message, ...] | None,
        prompt: str | None,
        options: Options,
    ) -> Request:
        for name in options.keys() - Options.__annotations__.keys():
            raise MetropolisError(f"llm.{method}() has no option {name!r}; {_meant(name)}")
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
        )

    async def _send(self, request: Request) -> Completion:
        strand, index = self._sent(request)
        completion = None
        try:
            with following(None):  # the tasks that a backend begins are not the agent's
                completion = await self._client.call(request)
        finally:
            self._ended(index, completion)
            strand.hear(index)
        return completion

    def _current(self) -> Strand:
        strand = current_strand()
        return self._strand if strand is None or strand.log is not self._log else strand

    def _sent(self, request: Request) -> tuple[Strand, int]:
        self.waiting += 1
        strand = self._current()
        prompt = request.text if self._keep_text else None
        model = self._client.backend.name
        return strand, strand.sent(self._agent, request.function, model, prompt)

    def _ended(self, index: int, completion: Completion | None) -> None:
        self.waiting -= 1
        self.heard_wall_s = time.monotonic()
        record = self._log.end(index, completion)
        if self._keep_text and completion is not None:
            record.completion = completion.text


class BlockingLLM:
    """The same for plain agents, which run in threads: every call waits in this thread.

    The calls run on `loop`, which must run in another thread. `on_block` and `on_unblock` are
    called on that loop when a call begins to wait and before its thread goes on; of calls that wait
    together, from threads of the agent's own, by the first and by the last. All count as calls of
    the task that has made this object.
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
        self._strand = current_strand()
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

        async def next_piece() -> str | None:
            return await anext(pieces, None)

        try:
            while (piece := self._wait(next_piece())) is not None:
                yield piece
        finally:
            self._wait(pieces.aclose())

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(self._hooked(coroutine), self._loop).result()

    async def _hooked(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._waiting += 1
        if self._strand is not None:
            self._strand.has_computed()
        if self._waiting == 1:
            self._on_block()
        try:
            with following(self._strand):
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


def _meant(name: str) -> str:
    """What to write in the place of an option that does not exist."""
    known = sorted(Options.__annotations__)
    close = get_close_matches(name, known, 1)
    return f"did you mean {close[0]}?" if close else f"its options are {', '.join(known)}"


def sampling_seed(
    seed: int, agent: AgentId, step: Step, function: str, digest: str, occurrence: int
) -> int:
    """The seed a call is sampled with: a function of what it is, never of when it is sent."""
    key = f"{seed} {agent} {step} {occurrence} {digest} {function}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> (64 - SEED_BITS)
