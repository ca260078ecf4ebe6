"""Simulated LLM instances, one iteration at a time: the specification of the C++ core.

Deliberately slow and simple. The rules are numbered as in cpp/src/instance_engine.hpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, nextafter
from typing import Any

from metropolis._core import Profile, Request
from metropolis.sim.options import PoolOptions
from metropolis.sim.reference_memory import SHARE, Memory, Sequence

SCALE = 2**60
"""Units of virtual time per second: integers, so that sums do not depend on grouping."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A request that left: completed with all its tokens, or aborted with those it had."""

    id: int
    instance: int
    output_tokens: int
    first_token_sim_s: float
    last_token_sim_s: float
    preempted_sim_s: float
    aborted: bool


@dataclass(frozen=True, slots=True)
class Status:
    """The same fields as `metropolis._core.InstanceStatus`."""

    kv_used_blocks: int
    kv_cached_blocks: int
    kv_capacity_blocks: int
    kv_host_blocks: int
    running: int
    waiting: int
    preemptions: int
    swapped_blocks: int
    prefix_hit_tokens: int
    reused_tokens: int
    sequence_tokens: int


@dataclass
class _Instance(Memory):
    index: int = 0
    origin_sim_s: float = 0.0
    boundary: int = 0
    """End of the last iteration, in units since the origin."""
    end: int | None = None
    """End of the current iteration; None between iterations."""
    until_decision: int = 0
    """Remaining iterations until the next decision (rule 5)."""
    chunks: dict[int, int] = field(default_factory=dict)
    """Prefill tokens of the current iteration, by sequence id."""
    attention: int = 0
    """Twice the Q of the current iteration's cost."""
    spared: int = 0
    """Prefill tokens of the current iteration spared by reuse, in units of 1 / SHARE."""
    busy: int = 0
    charged_blocks: int = 0
    """Swapped blocks whose transfer time iterations have been charged."""
    aborting: dict[int, bool] = field(default_factory=dict)
    """Sequences that are aborted at the next boundary; whether the host keeps their KV."""

    def to_sim_s(self, units: int) -> float:
        return self.origin_sim_s + units / SCALE

    def outstanding(self) -> int:
        return len(self.waiting) + len(self.running)

    def submit(self, sequence: Sequence) -> None:
        if not self.outstanding():
            self.origin_sim_s, self.boundary = sequence.arrival_sim_s, 0
        self.restore(sequence)
        self.waiting.append(sequence)

    def may_abort(self, id: int) -> bool:
        """Whether the request is here and not yet aborted."""
        return id not in self.aborting and any(s.id == id for s in [*self.waiting, *self.running])

    def abort(self, id: int, now_sim_s: float, keep: bool) -> Completion | None:
        """The completion, if it leaves at once; KeyError if it is not here or already aborted."""
        found = {s.id: s for s in [*self.waiting, *self.running] if s.id not in self.aborting}
        sequence = found[id]
        if sequence in self.running and (self.end is not None or self.until_decision):
            self.aborting[id] = keep
            return None
        return self._abort(sequence, now_sim_s, keep)

    def pass_time(self, until_sim_s: float) -> list[Completion]:
        completions: list[Completion] = []
        while self.outstanding():
            # Rule 1: an iteration sees the requests submitted at the boundary where it begins.
            if self.end is None:
                if self.to_sim_s(self.boundary) >= until_sim_s:
                    break
                self._begin_iteration()
            assert self.end is not None
            if self.to_sim_s(self.end) > until_sim_s:
                break
            completions += self._end_iteration()
        return completions

    def _begin_iteration(self) -> None:
        self.chunks, self.attention, self.spared = {}, 0, 0
        decides = not self.until_decision
        if not decides:  # rule 5
            for sequence in self._decoding():
                self.grow(sequence)
        else:
            self.reserved = 0
            if self.options.schedule == "prefill_first":  # rule 6
                self._prefill(self.profile.chunk_tokens, admits=True)
                if not self.chunks:
                    self._decode()
            else:
                preempted = self._decode()
                budget = self.profile.chunk_tokens - len(self._decoding())
                self._prefill(max(0, budget), admits=not preempted)
            self.until_decision = 1 if self.chunks else self.options.decision_iterations
        duration = self._duration(self.swapped_blocks - self.charged_blocks, decides)
        self.charged_blocks = self.swapped_blocks
        self.end = self.boundary + duration
        self.busy += duration

    def _decode(self) -> bool:
        """Rule 2: make room for decoding until the next decision; whether this preempted."""
        ahead = self.options.decision_iterations
        before = self.preemptions
        while self._growth(ahead) > self.available_blocks():
            victim = max(self.running, key=lambda s: s.rank)
            self.preempt(victim)
            if victim.generated:
                victim.preempted_at = self.boundary
        for sequence in self._decoding():
            self.grow(sequence)
        self.reserved = self._growth(ahead - 1)
        return self.preemptions > before

    def _growth(self, tokens: int) -> int:
        return sum(self.growth(s, tokens) for s in self.running if s.decodes)

    def _decoding(self) -> list[Sequence]:
        """Sequences that get a token in the current iteration."""
        if self.chunks and self.options.schedule == "prefill_first":
            return []
        return [s for s in self.running if s.decodes]

    def _prefill(self, budget: int, *, admits: bool) -> None:
        """Rule 3: give `budget` tokens to prefills."""
        mixed = self.options.schedule == "mixed"
        for sequence in [s for s in self.running if not s.decodes]:
            budget -= self._add_chunk(sequence, budget)
        self.waiting.sort(key=lambda s: s.rank)
        while admits and budget > 0 and self.waiting:
            sequence = self.waiting[0]
            if len(self.running) >= self.profile.max_sequences or self._exceeds(sequence, budget):
                break
            if not self.admit(sequence):
                break
            if sequence.preempted_at is not None:
                sequence.preempted += self.boundary - sequence.preempted_at
                sequence.preempted_at = None
            if mixed and sequence.has_token and sequence.computed == sequence.to_prefill - 1:
                sequence.computed += 1  # the sequence decodes; its block was part of the admission
                budget -= 1
            else:
                budget -= self._add_chunk(sequence, budget)

    def _exceeds(self, sequence: Sequence, budget: int) -> bool:
        """Whether its prefill, which cannot be split, has to wait for another iteration."""
        tokens = self.tokens_to_compute(sequence)
        is_alone = tokens > self.profile.chunk_tokens and not self.chunks
        return not self.options.chunked_prefill and tokens > budget and not is_alone

    def _add_chunk(self, sequence: Sequence, budget: int) -> int:
        chunk = sequence.to_prefill - sequence.computed
        if self.options.chunked_prefill:
            chunk = min(budget, chunk)
        if chunk:
            self.chunks[sequence.id] = chunk
            self.attention += chunk * (2 * sequence.computed + chunk)
            reused = max(0, min(chunk, sequence.reused - sequence.computed))
            off = SHARE - sequence.share
            self.spared += reused * off
            self.attention -= reused * (2 * sequence.computed + reused) * off // SHARE
        return chunk

    def _duration(self, swapped_blocks: int, decides: bool) -> int:
        profile, chunks = self.profile, self.chunks
        decoding = self._decoding()

        def units(value_ms: float) -> int:
            return int(value_ms * SCALE / 1000)

        block_bytes = profile.kv_bytes_per_token * profile.block_tokens
        swap_ms = swapped_blocks and block_bytes / (profile.pcie_gb_per_s * 1e6)
        k_ms = (chunks and profile.k_mixed_ms) or profile.k_ms
        prefills = min(len(chunks), 1) if profile.c_once else len(chunks)
        new_tokens, g = len(decoding) + sum(chunks.values()), units(profile.g_ms)
        linear = g * new_tokens - g * self.spared // SHARE + units(profile.h_ms)
        return (
            max(units(profile.w_ms), linear)
            + units(profile.b_ms) * len(decoding)
            + units(k_ms) * sum(s.computed for s in decoding)
            + units(profile.q_ms) * self.attention // 2
            + units(profile.c_ms) * prefills
            + decides * (units(profile.d_ms) + units(profile.e_ms) * (len(decoding) + len(chunks)))
            + units(swap_ms) * swapped_blocks
        )

    def _end_iteration(self) -> list[Completion]:
        """Rules 4 and 5: at a decision, return completions; aborted sequences leave last."""
        assert self.end is not None
        self.boundary, self.end = self.end, None
        self.until_decision -= 1
        now_sim_s = self.to_sim_s(self.boundary)
        decoded = self._decoding()
        for sequence in decoded:
            sequence.generated += 1
            sequence.first_token_sim_s = min(sequence.first_token_sim_s, now_sim_s)
        if self.until_decision:
            return []
        prefilled = sorted((s for s in self.running if s.id in self.chunks), key=_by_id)
        for sequence in prefilled:
            sequence.computed += self.chunks[sequence.id]
            if sequence.decodes:
                sequence.generated += 1
                sequence.first_token_sim_s = min(sequence.first_token_sim_s, now_sim_s)
        completions = []
        in_vain = sorted(s.generated - s.request.output_tokens for s in decoded)[::-1]
        for sequence in [*sorted(decoded, key=_by_surplus), *prefilled]:
            if sequence.decodes and sequence in prefilled:
                self.share(sequence)
            if sequence.generated >= sequence.request.output_tokens:
                completions.append(self._leave(sequence, now_sim_s, aborted=False))
        if self.options.surplus:
            self.fill([iterations for iterations in in_vain if iterations >= 0])
        for sequence in sorted((s for s in self.running if s.id in self.aborting), key=_by_id):
            completions.append(self._abort(sequence, now_sim_s, self.aborting[sequence.id]))
        self.aborting.clear()
        return completions

    def _abort(self, sequence: Sequence, now_sim_s: float, keep: bool) -> Completion:
        if keep:
            if sequence in self.running:
                self.swap_out(sequence)
            if sequence.swapped:
                self.kept[sequence.id] = sequence
        return self._leave(sequence, now_sim_s, aborted=True)

    def _leave(self, sequence: Sequence, now_sim_s: float, *, aborted: bool) -> Completion:
        if sequence in self.running:
            self.release(sequence)
        else:
            self.waiting.remove(sequence)
        preempted_sim_s = sequence.preempted / SCALE
        if sequence.preempted_at is not None:
            preempted_sim_s += now_sim_s - self.to_sim_s(sequence.preempted_at)
        return Completion(
            sequence.id,
            self.index,
            _tokens(sequence),
            sequence.first_token_sim_s,
            now_sim_s,
            preempted_sim_s,
            aborted,
        )


def _by_id(sequence: Sequence) -> int:
    return sequence.id


def _by_surplus(sequence: Sequence) -> tuple[int, int]:
    return (sequence.request.output_tokens - sequence.generated, sequence.id)


def _tokens(sequence: Sequence) -> int:
    return min(sequence.generated, sequence.request.output_tokens)


class ReferencePool:
    """Behaves like `metropolis._core.InstancePool`."""

    def __init__(
        self, profile: Profile, instances: int = 1, *options: Any, **named_options: Any
    ) -> None:
        chosen = PoolOptions(*options, **named_options)
        self._instances = [_Instance(profile, chosen, index=i) for i in range(instances)]
        self._unreported: list[Completion] = []

    def submit(self, id: int, request: Request, now_sim_s: float) -> None:
        """Submit the request to the least loaded instance; times must not decrease."""
        self._pass(now_sim_s)
        least = min(self._instances, key=lambda i: (id not in i.kept, i.outstanding(), i.index))
        least.submit(Sequence(id, request, now_sim_s))

    def abort(self, id: int, now_sim_s: float, keep: bool = False) -> None:
        """See `metropolis._core.InstancePool.abort`."""
        if any(instance.may_abort(id) for instance in self._instances):
            self._pass(now_sim_s)
        for instance in self._instances:
            try:
                left = instance.abort(id, now_sim_s, keep)
            except KeyError:
                continue
            if left:
                self._unreported.append(left)
            return
        raise ValueError(f"request {id} cannot be aborted")

    def discard(self, id: int, now_sim_s: float) -> None:
        """See `metropolis._core.InstancePool.discard`."""
        self._pass(now_sim_s)
        for instance in self._instances:
            instance.kept.pop(id, None)
            if id in instance.aborting:
                instance.aborting[id] = False

    def reprioritize(self, priorities: Mapping[int, int], now_sim_s: float) -> None:
        """See `metropolis._core.InstancePool.reprioritize`."""
        self._pass(now_sim_s)
        for instance in self._instances:
            for sequence in [*instance.waiting, *instance.running]:
                sequence.priority = priorities.get(sequence.id, sequence.priority)

    def progress(self, instance: int = 0) -> dict[int, int]:
        """Output tokens of each running request."""
        return {s.id: _tokens(s) for s in self._instances[instance].running}

    def status(self, instance: int = 0) -> Status:
        """State of an instance at the pool's current time."""
        one = self._instances[instance]
        capacity = one.profile.kv_capacity_tokens // one.profile.block_tokens
        return Status(
            capacity - one.available_blocks(),
            len(one.idle_blocks()),
            capacity,
            one.host_blocks(),
            len(one.running),
            len(one.waiting),
            one.preemptions,
            one.swapped_blocks,
            one.prefix_hit_tokens,
            one.reused_tokens,
            sum(
                s.request.prompt_tokens + _tokens(s)
                for s in [*one.waiting, *one.running]
                if s.id not in one.aborting
            ),
        )

    def cached_tokens(self, instance: int, prefix: list[tuple[int, int]]) -> int:
        """Leading tokens of `prefix` in the instance's prefix cache now, in whole blocks."""
        one = self._instances[instance]
        return len(one.found(one.blocks_in(prefix))) * one.profile.block_tokens

    def next_event_sim_s(self) -> float:
        """A time at or before the next completion; infinity when nothing is outstanding."""
        times = [c.last_token_sim_s for c in self._unreported]
        for instance in self._instances:
            if instance.end is not None:
                times.append(instance.to_sim_s(instance.end))
            elif instance.outstanding():
                times.append(nextafter(instance.to_sim_s(instance.boundary), inf))
        return min(times, default=inf)

    def advance(self, until_sim_s: float) -> list[Completion]:
        """Completions up to and including `until_sim_s`, sorted by (last_token_sim_s, id)."""
        self._pass(until_sim_s)
        reported = [c for c in self._unreported if c.last_token_sim_s <= until_sim_s]
        self._unreported = [c for c in self._unreported if c.last_token_sim_s > until_sim_s]
        return sorted(reported, key=lambda c: (c.last_token_sim_s, c.id))

    def outstanding(self) -> int:
        """Number of requests submitted and not yet reported complete."""
        return len(self._unreported) + sum(i.outstanding() for i in self._instances)

    def busy_sim_s(self, instance: int) -> float:
        """Total duration of the iterations begun so far."""
        return self._instances[instance].busy / SCALE

    def preemptions(self) -> int:
        """Number of preemptions of running sequences."""
        return sum(i.preemptions for i in self._instances)

    def _pass(self, until_sim_s: float) -> None:
        for instance in self._instances:
            self._unreported += instance.pass_time(until_sim_s)
