"""What virtual LLM instances do, one iteration at a time: the specification of the C++ core.

Slow and plain on purpose. The rules are numbered as in cpp/src/instance_engine.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from math import inf, nextafter

from metropolis._core import Profile, Request

SCALE = 2**60
"""Units of virtual time in a second: integers, so that sums do not depend on grouping."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A request that has left: with all its tokens, or aborted with those it had."""

    id: int
    instance: int
    output_tokens: int
    first_token_sim_s: float
    last_token_sim_s: float
    aborted: bool


@dataclass(frozen=True, slots=True)
class Status:
    """As `metropolis._core.InstanceStatus`."""

    kv_used_blocks: int
    kv_cached_blocks: int
    kv_capacity_blocks: int
    running: int
    waiting: int
    preemptions: int
    prefix_hit_tokens: int


Tokens = tuple[tuple[int, int], ...]
"""Known tokens: which text, and which of its tokens."""


@dataclass(eq=False)
class _Sequence:
    id: int
    request: Request
    arrival_sim_s: float
    generated: int = 0
    to_prefill: int = 0
    """Prompt, and what had been generated when it was admitted (again)."""
    computed: int = 0
    """Tokens in the KV cache."""
    blocks: int = 0
    """Blocks it holds, without those in the prefix cache."""
    shared: list[Tokens] = field(default_factory=list)
    """Blocks it holds in the prefix cache, by all tokens up to their ends."""
    first_token_sim_s: float = inf

    @property
    def rank(self) -> tuple[int, float, int]:
        return (self.request.priority, self.arrival_sim_s, self.id)

    @property
    def decodes(self) -> bool:
        return self.computed >= self.to_prefill


@dataclass
class _CachedBlock:
    references: int
    released: int = 0
    """Counts releases, so that the smallest is the least recently used."""


@dataclass
class _Instance:
    profile: Profile
    prefix_reuse: bool
    index: int
    waiting: list[_Sequence] = field(default_factory=list)
    running: list[_Sequence] = field(default_factory=list)
    cached: dict[Tokens, _CachedBlock] = field(default_factory=dict)
    origin_sim_s: float = 0.0
    boundary: int = 0
    """End of the last iteration, in units from the origin."""
    end: int | None = None
    """End of the iteration under way."""
    chunks: dict[int, int] = field(default_factory=dict)
    """Prefill tokens of the iteration under way, by sequence id."""
    busy: int = 0
    aborting: set[int] = field(default_factory=set)
    preemptions: int = 0
    prefix_hit_tokens: int = 0
    releases: int = 0

    def to_sim_s(self, units: int) -> float:
        return self.origin_sim_s + units / SCALE

    def outstanding(self) -> int:
        return len(self.waiting) + len(self.running)

    def submit(self, sequence: _Sequence) -> None:
        if not self.outstanding():
            self.origin_sim_s, self.boundary = sequence.arrival_sim_s, 0
        self.waiting.append(sequence)

    def abort(self, id: int, now_sim_s: float) -> Completion | None:
        """What leaves at once; KeyError for a request that is not here, or aborted already."""
        found = {s.id: s for s in [*self.waiting, *self.running] if s.id not in self.aborting}
        sequence = found[id]
        if sequence in self.running and self.end is not None:
            self.aborting.add(id)
            return None
        return self._leave(sequence, now_sim_s, aborted=True)

    def pass_time(self, until_sim_s: float) -> list[Completion]:
        completions: list[Completion] = []
        while self.outstanding():
            # Rule 1: what is submitted at a boundary is seen by the iteration that begins there.
            if self.end is None:
                if self.to_sim_s(self.boundary) >= until_sim_s:
                    break
                self._begin()
            assert self.end is not None
            if self.to_sim_s(self.end) > until_sim_s:
                break
            completions += self._finish()
        return completions

    # --- memory

    def free_blocks(self) -> int:
        used = sum(s.blocks for s in self.running) + len(self.cached)
        return self.profile.kv_capacity_tokens // self.profile.block_tokens - used

    def available_blocks(self) -> int:
        """Free, or cached and held by nobody."""
        return self.free_blocks() + len(self.idle_blocks())

    def idle_blocks(self) -> list[Tokens]:
        """Cached and held by nobody, least recently used first."""
        idle = [tokens for tokens, block in self.cached.items() if not block.references]
        return sorted(idle, key=lambda tokens: self.cached[tokens].released)

    def allocate(self, sequence: _Sequence, blocks: int) -> None:
        while self.free_blocks() < blocks:
            del self.cached[self.idle_blocks()[0]]
        sequence.blocks += blocks

    def release(self, sequence: _Sequence) -> None:
        self.share_blocks(sequence)
        self.running.remove(sequence)
        sequence.blocks = 0
        for tokens in reversed(sequence.shared):  # the last first: leaves are evicted first
            block = self.cached[tokens]
            block.references -= 1
            self.releases += 1
            block.released = self.releases
        sequence.shared = []

    def share_blocks(self, sequence: _Sequence) -> None:
        """Put what it has computed of its known tokens into the cache."""
        for tokens in self.known_blocks(sequence, sequence.computed)[len(sequence.shared) :]:
            self.cached.setdefault(tokens, _CachedBlock(0)).references += 1
            sequence.shared.append(tokens)
            sequence.blocks -= 1

    def known_blocks(self, sequence: _Sequence, limit: int) -> list[Tokens]:
        """Whole blocks of known tokens among its first `limit` tokens."""
        prefix = sequence.request.prefix if self.prefix_reuse else []
        known = tuple((text, i) for text, tokens in prefix for i in range(tokens))[:limit]
        step = self.profile.block_tokens
        return [known[:end] for end in range(step, len(known) + 1, step)]

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.profile.block_tokens)

    # --- an iteration

    def _begin(self) -> None:
        profile = self.profile
        decoding = [s for s in self.running if s.decodes]

        # Rule 2: room for one token of everybody who decodes.
        def growing() -> list[_Sequence]:
            return [s for s in decoding if s.computed % profile.block_tokens == 0]

        preempted = False
        while len(growing()) > self.available_blocks():
            worst = max(self.running, key=lambda s: s.rank)
            self.release(worst)
            decoding = [s for s in decoding if s is not worst]
            self.waiting.append(worst)
            self.preemptions += 1
            preempted = True
        for sequence in growing():
            self.allocate(sequence, 1)
        for sequence in decoding:
            sequence.computed += 1

        # Rule 3: prefills.
        budget = max(0, profile.chunk_tokens - len(decoding))
        self.chunks = {}
        attention = 0
        for sequence in [s for s in self.running if not s.decodes]:
            chunk = min(budget, sequence.to_prefill - sequence.computed)
            if chunk:
                self.chunks[sequence.id] = chunk
                attention += chunk * (2 * sequence.computed + chunk)
                budget -= chunk
        self.waiting.sort(key=lambda s: s.rank)
        while not preempted and budget and self.waiting:
            sequence = self.waiting[0]
            if len(self.running) >= profile.max_sequences or not self._admit(sequence):
                break
            chunk = min(budget, sequence.to_prefill - sequence.computed)
            self.chunks[sequence.id] = chunk
            attention += chunk * (2 * sequence.computed + chunk)
            budget -= chunk

        duration = self._duration(decoding, attention)
        self.end = self.boundary + duration
        self.busy += duration

    def _admit(self, sequence: _Sequence) -> bool:
        sequence.to_prefill = sequence.request.prompt_tokens + sequence.generated
        known = self.known_blocks(sequence, sequence.to_prefill - 1)
        found = list(takewhile(self.cached.__contains__, known))
        needed = self.blocks_of(sequence.to_prefill) - len(found)
        idle = sum(not self.cached[tokens].references for tokens in found)
        if needed > self.available_blocks() - idle:
            return False
        self.waiting.remove(sequence)
        self.running.append(sequence)
        for tokens in found:
            self.cached[tokens].references += 1
        sequence.shared = found
        sequence.computed = len(found) * self.profile.block_tokens
        self.prefix_hit_tokens += sequence.computed
        self.allocate(sequence, needed)
        return True

    def _duration(self, decoding: list[_Sequence], attention: int) -> int:
        profile, chunks = self.profile, self.chunks

        def units(value_ms: float) -> int:
            return int(value_ms * SCALE / 1000)

        k_ms = (chunks and profile.k_mixed_ms) or profile.k_ms
        prefills = min(len(chunks), 1) if profile.c_once else len(chunks)
        new_tokens = len(decoding) + sum(chunks.values())
        return (
            max(units(profile.w_ms), units(profile.g_ms) * new_tokens + units(profile.h_ms))
            + units(profile.b_ms) * len(decoding)
            + units(k_ms) * sum(s.computed for s in decoding)
            + units(profile.q_ms) * attention // 2
            + units(profile.c_ms) * prefills
        )

    def _finish(self) -> list[Completion]:
        """Rule 4: those that decoded go first, in order of id; the aborted last."""
        assert self.end is not None
        self.boundary, self.end = self.end, None
        now_sim_s = self.to_sim_s(self.boundary)
        completions = []
        decoded = [s for s in self.running if s.decodes]
        prefilled = [s for s in self.running if s.id in self.chunks]
        for sequence in [*sorted(decoded, key=_by_id), *sorted(prefilled, key=_by_id)]:
            if sequence.id in self.chunks:
                sequence.computed += self.chunks[sequence.id]
                if not sequence.decodes:
                    continue
                self.share_blocks(sequence)
            sequence.generated += 1
            sequence.first_token_sim_s = min(sequence.first_token_sim_s, now_sim_s)
            if sequence.generated == sequence.request.output_tokens:
                completions.append(self._leave(sequence, now_sim_s, aborted=False))
        for sequence in sorted((s for s in self.running if s.id in self.aborting), key=_by_id):
            completions.append(self._leave(sequence, now_sim_s, aborted=True))
        self.aborting.clear()
        return completions

    def _leave(self, sequence: _Sequence, now_sim_s: float, *, aborted: bool) -> Completion:
        if sequence in self.running:
            self.release(sequence)
        else:
            self.waiting.remove(sequence)
        first_token_sim_s = sequence.first_token_sim_s
        return Completion(
            sequence.id, self.index, sequence.generated, first_token_sim_s, now_sim_s, aborted
        )


def _by_id(sequence: _Sequence) -> int:
    return sequence.id


class ReferencePool:
    """The same observable behaviour as `metropolis._core.InstancePool`."""

    def __init__(self, profile: Profile, instances: int = 1, prefix_reuse: bool = False) -> None:
        self._instances = [_Instance(profile, prefix_reuse, i) for i in range(instances)]
        self._unreported: list[Completion] = []

    def submit(self, id: int, request: Request, now_sim_s: float) -> None:
        """Gives the request to the least loaded instance; times must not descend."""
        self._pass(now_sim_s)
        least = min(self._instances, key=lambda i: (i.outstanding(), i.index))
        least.submit(_Sequence(id, request, now_sim_s))

    def abort(self, id: int, now_sim_s: float) -> None:
        """See `metropolis._core.InstancePool.abort`."""
        self._pass(now_sim_s)
        for instance in self._instances:
            try:
                left = instance.abort(id, now_sim_s)
            except KeyError:
                continue
            self._unreported += [left] if left else []
            return
        raise ValueError(f"request {id} cannot be aborted")

    def progress(self, instance: int = 0) -> dict[int, int]:
        """Requests that run, and how many tokens each has."""
        return {s.id: s.generated for s in self._instances[instance].running}

    def status(self, instance: int = 0) -> Status:
        """An instance at the time the pool has reached."""
        one = self._instances[instance]
        capacity = one.profile.kv_capacity_tokens // one.profile.block_tokens
        return Status(
            capacity - one.available_blocks(),
            len(one.idle_blocks()),
            capacity,
            len(one.running),
            len(one.waiting),
            one.preemptions,
            one.prefix_hit_tokens,
        )

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
        """Completions up to and including `until_sim_s`, by (last_token_sim_s, id)."""
        self._pass(until_sim_s)
        reported = [c for c in self._unreported if c.last_token_sim_s <= until_sim_s]
        self._unreported = [c for c in self._unreported if c.last_token_sim_s > until_sim_s]
        return sorted(reported, key=lambda c: (c.last_token_sim_s, c.id))

    def outstanding(self) -> int:
        """Requests submitted and not yet reported complete."""
        return len(self._unreported) + sum(i.outstanding() for i in self._instances)

    def busy_sim_s(self, instance: int) -> float:
        """Time spent in iterations begun so far."""
        return self._instances[instance].busy / SCALE

    def preemptions(self) -> int:
        """How often a running sequence lost its blocks."""
        return sum(i.preemptions for i in self._instances)

    def _pass(self, until_sim_s: float) -> None:
        for instance in self._instances:
            self._unreported += instance.pass_time(until_sim_s)
