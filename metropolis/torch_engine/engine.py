"""Continuous batching: prefills by priority, one at a time, between steps of decoding.

A request is admitted when the buffers that it needs until its last token fit in the memory; caches
are evicted for it. So nothing that runs is ever preempted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any, Literal

import torch

from metropolis.policy.base import QueuedRequest
from metropolis.reuse.base import CacheReuse
from metropolis.torch_engine.cache_choice import CacheChoice, Origin, ReuseOrder
from metropolis.torch_engine.decode import DecodeBatch
from metropolis.torch_engine.grammar import Grammars
from metropolis.torch_engine.model import Model, require_equal_shapes
from metropolis.torch_engine.prefill import prefill
from metropolis.torch_engine.sampling import Sampler, Sampling, choose_each
from metropolis.torch_engine.text import AnswerText
from metropolis.types import MetropolisError

TOKENS_MIN = 2
"""A prompt and an answer of one token each."""
SPEED_WEIGHT = 0.1
"""Weight of the newest prefill in the average speed."""


class EngineError(MetropolisError):
    """A request that failed in the engine."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request for one answer."""

    model: str
    prompt: Sequence[int]
    """Tokens, at least one."""
    max_tokens: int | None = None
    """Greatest length of the answer; None: what the model's context and the memory leave."""
    sampling: Sampling = field(default_factory=Sampling)
    stops: Sequence[str] = ()
    schema: Mapping[str, Any] | None = None
    """The JSON schema that the answer follows."""
    ignores_end: bool = False
    """Whether end tokens do not end the answer."""
    priority: int = 0
    """Smaller ones first, then by arrival."""
    reuse: ReuseOrder | None = None
    """None: the engine's own plug-in chooses."""
    id: str | None = None
    """By which its client may abort it."""


Finish = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Output:
    """What is new of an answer."""

    text: str
    tokens: int
    """Of the answer so far."""
    origin: Origin
    finish: Finish | None = None


Receiver = Callable[[Output | MetropolisError], None]
"""Gets the outputs in order; an error or an output with `finish` is the last."""


@dataclass(slots=True)
class _Sequence:
    """A request and its answer."""

    request: GenerationRequest
    receive: Receiver
    most_tokens: int
    """Of prompt and answer."""
    sampler: Sampler
    text: AnswerText
    arrived_s: float
    answer: list[int] = field(default_factory=list)
    origin: Origin = field(default_factory=Origin)


@dataclass(slots=True)
class Prefill:
    """A completed prefill, for metrics."""

    model: str
    prompt_tokens: int
    origin: Origin
    prefill_s: float
    ttft_s: float


class Engine:
    """Generates for fine-tuned variants of one model; a pure state machine but for `torch`.

    `memory_bytes` bounds caches and buffers together; at most `max_sequences` sequences run at a
    time. `on_prefill` is told of every prefill. Raises MetropolisError if the models differ in
    shape or tokens, `reuse` does not fit them, or the memory is too small.
    """

    def __init__(
        self,
        models: Sequence[Model],
        reuse: CacheReuse,
        memory_bytes: int,
        max_sequences: int = 16,
        on_prefill: Callable[[Prefill], None] = lambda _: None,
    ) -> None:
        for other in models[1:]:
            require_equal_shapes(models[0], other)
        self.models = {model.name: model for model in models}
        self._choice = CacheChoice(self.models, reuse)
        self._grammars = {
            model.name: Grammars(model.tokenizer, min(model.end_tokens, default=None))
            for model in models
        }
        self._memory_bytes, self._max_sequences = memory_bytes, max_sequences
        self._on_prefill = on_prefill
        self._batches = {model.name: DecodeBatch(model) for model in models}
        self._running: dict[str, list[int]] = {model.name: [] for model in models}
        """By model, the sequence in each row of its batch."""
        self._waiting: list[tuple[int, int]] = []
        """A heap of priorities and numbers; it may hold cancelled ones."""
        self._sequences: dict[int, _Sequence] = {}
        if self.capacity_tokens < TOKENS_MIN:
            raise MetropolisError(
                f"the memory of {memory_bytes:,} bytes is for {self.capacity_tokens} tokens; it "
                f"should be for {TOKENS_MIN} at least"
            )
        self._numbers = count()
        self._per_token_s: float | None = None
        """Moving average of full prefills."""

    @property
    def waiting(self) -> int:
        """Requests that are not admitted yet."""
        return len(self._sequences) - self.running

    @property
    def running(self) -> int:
        """Requests in batches."""
        return sum(map(len, self._running.values()))

    @property
    def is_idle(self) -> bool:
        """Whether `step` has nothing to do."""
        return not self._sequences

    @property
    def cache_bytes(self) -> int:
        """Size of the caches."""
        return self._choice.bytes

    @property
    def capacity_tokens(self) -> int:
        """Tokens whose KV fits in the memory."""
        model = next(iter(self.models.values()))
        return self._memory_bytes // model.kv_bytes_per_token

    def prepare(self, request: GenerationRequest, receive: Receiver) -> _Sequence:
        """Check a request and prepare its answer; may be called from any thread.

        Raises MetropolisError if it can never be served.
        """
        model = self.models[request.model]
        room = min(model.positions, self.capacity_tokens)
        wanted = len(request.prompt) + (1 if request.max_tokens is None else request.max_tokens)
        if wanted > room:
            raise MetropolisError(
                f"prompt and answer have up to {wanted:,} tokens; {request.model!r} has room for "
                f"{room:,} here"
            )
        if request.reuse is not None:
            self._choice.check(request.reuse)
        matcher = None
        if request.schema is not None:
            matcher = self._grammars[request.model].matcher(request.schema)
        return _Sequence(
            request,
            receive,
            room if request.max_tokens is None else wanted,
            Sampler(request.sampling, matcher),
            AnswerText(model.tokenizer, request.stops),
            time.perf_counter(),
        )

    def submit(self, sequence: _Sequence) -> int:
        """Enqueue a request; returns its number."""
        number = next(self._numbers)
        self._sequences[number] = sequence
        heappush(self._waiting, (sequence.request.priority, number))
        return number

    def cancel(self, number: int) -> None:
        """Drop a request, if it has not ended."""
        sequence = self._sequences.get(number)
        if sequence is not None:
            self._end(number, sequence)

    def abort(self, prefix: str) -> None:
        """End the requests whose id begins with `prefix`."""
        for number, sequence in [*self._sequences.items()]:
            if sequence.request.id is not None and sequence.request.id.startswith(prefix):
                self._end(number, sequence)
                sequence.receive(Output("", len(sequence.answer), sequence.origin, "abort"))

    def step(self) -> None:
        """Prefill the next request, if it fits, and decode a token of every running one."""
        number = self._admitted()
        if number is not None:
            self._prefill(number, self._sequences[number])
        for name, rows in self._running.items():
            if rows:
                self._decode(name, rows)

    def fail(self, error: MetropolisError) -> None:
        """End all requests with `error`."""
        for number, sequence in [*self._sequences.items()]:
            self._end(number, sequence)
            sequence.receive(error)

    def _admitted(self) -> int | None:
        """The next request, if it fits; caches are evicted for its buffers."""
        while self._waiting and self._waiting[0][1] not in self._sequences:
            heappop(self._waiting)
        if not self._waiting or self.running == self._max_sequences:
            return None
        number = self._waiting[0][1]
        sequence = self._sequences[number]
        rows, most = self._running[sequence.request.model], sequence.most_tokens
        needed = sum(
            batch.bytes_with(len(rows) + 1, most)
            if name == sequence.request.model
            else batch.bytes_with(0, 0)
            for name, batch in self._batches.items()
        )
        if needed > self._memory_bytes:
            return None
        self._choice.shrink(self._memory_bytes - needed)
        heappop(self._waiting)
        return number

    def _prefill(self, number: int, sequence: _Sequence) -> None:
        request, began_s = sequence.request, time.perf_counter()
        name, model = request.model, self.models[request.model]
        try:
            start, sequence.origin = self._choice.start(
                _queued(number, sequence), request.prompt, request.reuse, self._per_token_s
            )
            logits, kv = prefill(
                model,
                torch.tensor([request.prompt], device=model.device),
                start,
                self._choice.input_layers[name],
            )
            [token] = choose_each([sequence.sampler], logits)
        except (RuntimeError, MetropolisError) as error:  # torch raises the former
            self._fail(number, sequence, error)
            return
        ended_s = time.perf_counter()
        self._note_speed(sequence, ended_s - began_s)
        self._on_prefill(
            Prefill(
                name,
                len(request.prompt),
                sequence.origin,
                ended_s - began_s,
                ended_s - sequence.arrived_s,
            )
        )
        self._choice.keep(name, request.prompt, kv)
        self._batches[name].add(kv, sequence.most_tokens)
        self._running[name].append(number)
        self._shrink()
        self._advance(number, sequence, token)

    def _decode(self, name: str, rows: Sequence[int]) -> None:
        numbers, batch = [*rows], self._batches[name]
        sequences = [self._sequences[number] for number in numbers]
        last = torch.tensor(
            [each.answer[-1] for each in sequences], device=self.models[name].device
        )
        try:
            tokens = choose_each([each.sampler for each in sequences], batch.step(last))
        except RuntimeError as error:
            for number, sequence in zip(numbers, sequences, strict=True):
                self._fail(number, sequence, error)
            return
        for number, sequence, token in zip(numbers, sequences, tokens, strict=True):
            self._advance(number, sequence, token)

    def _advance(self, number: int, sequence: _Sequence, token: int) -> None:
        """Add a token to an answer, which may end with it."""
        request, model = sequence.request, self.models[sequence.request.model]
        try:
            is_end = token in model.end_tokens and not request.ignores_end
            is_complete = sequence.sampler.is_complete()
        except MetropolisError as error:
            self._fail(number, sequence, error)
            return
        sequence.answer.append(token)
        text = "" if is_end else sequence.text.add(token)
        finish: Finish | None = None
        if is_end or is_complete or sequence.text.is_stopped:
            finish = "stop"
        elif len(request.prompt) + len(sequence.answer) == sequence.most_tokens:
            finish = "length"
        if finish is not None:
            text += sequence.text.finish()
            if sequence.text.is_stopped:
                finish = "stop"
            self._keep_answer(number, sequence)
            self._end(number, sequence)
        sequence.receive(Output(text, len(sequence.answer), sequence.origin, finish))

    def _keep_answer(self, number: int, sequence: _Sequence) -> None:
        """Hold the KV of prompt and answer; that of the last token was not computed."""
        name = sequence.request.model
        kv = self._batches[name].kv(self._running[name].index(number))
        self._choice.keep(name, [*sequence.request.prompt, *sequence.answer[:-1]], kv)

    def _fail(self, number: int, sequence: _Sequence, error: Exception) -> None:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        self._end(number, sequence)
        sequence.receive(EngineError(f"the engine failed: {reason}"))

    def _end(self, number: int, sequence: _Sequence) -> None:
        """Remove a sequence from its batch; the last row takes its place."""
        del self._sequences[number]
        rows = self._running[sequence.request.model]
        if number in rows:
            row = rows.index(number)
            self._batches[sequence.request.model].remove(row)
            rows[row] = rows[-1]
            rows.pop()
            self._shrink()

    def _shrink(self) -> None:
        buffers = sum(batch.bytes_with(0, 0) for batch in self._batches.values())
        self._choice.shrink(self._memory_bytes - buffers)

    def _note_speed(self, sequence: _Sequence, prefill_s: float) -> None:
        if sequence.origin != Origin():
            return
        per_token_s = prefill_s / len(sequence.request.prompt)
        if self._per_token_s is None:
            self._per_token_s = per_token_s
        self._per_token_s += SPEED_WEIGHT * (per_token_s - self._per_token_s)


def _queued(number: int, sequence: _Sequence) -> QueuedRequest:
    request = sequence.request
    return QueuedRequest(
        number,
        f"{number}",
        "",
        len(request.prompt),
        sequence.arrived_s,
        sequence.arrived_s,
        model=request.model,
    )
