"""Continuous batching: prefills by priority, one at a time, between steps of decoding.

A request is admitted when the buffers that it needs until its last token fit in the memory; caches
are evicted for it. So nothing that runs is ever preempted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import torch

from metropolis.names import first_line
from metropolis.policy.base import QueuedRequest
from metropolis.reuse.base import CacheReuse
from metropolis.torch_engine.cache_choice import CacheChoice, Origin
from metropolis.torch_engine.decode import DecodeBatch
from metropolis.torch_engine.generation_request import (
    EngineError,
    Finish,
    GenerationRequest,
    Output,
    Receiver,
)
from metropolis.torch_engine.grammar import Grammars
from metropolis.torch_engine.model import Model, require_variants
from metropolis.torch_engine.prefill import prefill
from metropolis.torch_engine.sampling import Sampler
from metropolis.torch_engine.text import AnswerText
from metropolis.types import MetropolisError

TOKENS_MIN = 2
"""A prompt and an answer of one token each."""
SPEED_WEIGHT = 0.1
"""Weight of the newest prefill in the average speed."""


@dataclass(slots=True)
class _Sequence:
    """A request and its answer."""

    request: GenerationRequest
    receive: Receiver
    most_tokens: int
    """Maximum length of prompt and answer together."""
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
    time, and the answers of requests that name no length have at most `answer_tokens` tokens.
    `on_prefill` receives every prefill. Raises MetropolisError if the models differ in
    shape or tokens, `reuse` does not fit them, or the memory is too small.
    """

    def __init__(
        self,
        models: Sequence[Model],
        reuse: CacheReuse,
        memory_bytes: int,
        max_sequences: int = 16,
        answer_tokens: int = 1024,
        on_prefill: Callable[[Prefill], None] = lambda _: None,
    ) -> None:
        require_variants(models)
        self.models = {model.name: model for model in models}
        self._choice = CacheChoice(self.models, reuse)
        self._grammars = {
            model.name: Grammars(model.tokenizer, min(model.end_tokens, default=None))
            for model in models
        }
        self.memory_bytes, self._max_sequences = memory_bytes, max_sequences
        self._answer_tokens = answer_tokens
        self._on_prefill = on_prefill
        self._batches = {
            model.name: DecodeBatch(model, self._choice.input_layers[model.name])
            for model in models
        }
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
    def buffer_bytes(self) -> int:
        """Size of the buffers of running sequences."""
        return sum(batch.bytes for batch in self._batches.values())

    @property
    def capacity_tokens(self) -> int:
        """Tokens of any model whose KV, and inputs (E) if they are kept, fit in the memory."""
        model = next(iter(self.models.values()))
        inputs = max(map(len, self._choice.input_layers.values()))
        token_bytes = model.kv_bytes_per_token + inputs * model.input_bytes_per_token
        return self.memory_bytes // token_bytes

    def kept_inputs(self, model: str) -> frozenset[int]:
        """The layers whose inputs (E) are kept beside the KV of `model`."""
        return self._choice.input_layers[model]

    def is_receiver(self, model: str) -> bool:
        """Whether `model` may start from another model's cache."""
        return model in self._choice.receivers

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
            self._choice.check(request.model, request.reuse)
        matcher = None
        if request.schema is not None:
            matcher = self._grammars[request.model].matcher(request.schema)
        return _Sequence(
            request,
            receive,
            wanted if request.max_tokens else min(room, len(request.prompt) + self._answer_tokens),
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
        """The next request, if its buffers fit beside those of the running ones."""
        while self._waiting and self._waiting[0][1] not in self._sequences:
            heappop(self._waiting)
        if not self._waiting or self.running == self._max_sequences:
            return None
        number = self._waiting[0][1]
        if self._buffers_with(self._sequences[number]) > self.memory_bytes:
            return None
        heappop(self._waiting)
        return number

    def _buffers_with(self, sequence: _Sequence) -> int:
        """Size of all buffers with those of one more sequence."""
        batch = self._batches[sequence.request.model]
        return self.buffer_bytes - batch.bytes + batch.bytes_with(sequence.most_tokens)

    def _prefill(self, number: int, sequence: _Sequence) -> None:
        request, began_s = sequence.request, time.perf_counter()
        name, model = request.model, self.models[request.model]
        try:
            # Looked up first, so that what it starts from is not evicted for it.
            start, sequence.origin = self._choice.start(
                _queued(number, sequence), request.prompt, request.reuse, self._per_token_s
            )
            self._choice.shrink(self.memory_bytes - self._buffers_with(sequence))
            logits, kv = prefill(
                model,
                torch.tensor([request.prompt], device=model.device),
                start,
                self._choice.input_layers[name],
            )
            self._batches[name].add(kv, sequence.most_tokens)
            self._running[name].append(number)
            self._choice.keep(name, request.prompt, kv)
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
        self._shrink()
        self._choose(number, sequence, logits[0].cpu())

    def _decode(self, name: str, rows: Sequence[int]) -> None:
        numbers, batch = [*rows], self._batches[name]
        sequences = [self._sequences[number] for number in numbers]
        last = torch.tensor(
            [each.answer[-1] for each in sequences], device=self.models[name].device
        )
        try:
            logits = batch.step(last).cpu()
        except RuntimeError as error:
            for number, sequence in zip(numbers, sequences, strict=True):
                self._fail(number, sequence, error)
            return
        for number, sequence, row in zip(numbers, sequences, logits, strict=True):
            self._choose(number, sequence, row)

    def _choose(self, number: int, sequence: _Sequence, logits: torch.Tensor) -> None:
        """Choose the next token of an answer; a fault ends this request only."""
        try:
            self._advance(number, sequence, sequence.sampler.choose(logits))
        except (RuntimeError, MetropolisError) as error:
            self._fail(number, sequence, error)

    def _advance(self, number: int, sequence: _Sequence, token: int) -> None:
        """Add a token to an answer, which may end with it."""
        request, model = sequence.request, self.models[sequence.request.model]
        is_end = token in model.end_tokens and not request.ignores_end
        is_complete = sequence.sampler.is_complete()
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
        if number in self._sequences:
            self._end(number, sequence)
        sequence.receive(EngineError(f"the engine failed: {first_line(error)}"))

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
        self._choice.shrink(self.memory_bytes - self.buffer_bytes)

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
