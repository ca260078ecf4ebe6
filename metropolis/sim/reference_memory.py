"""The KV memory of one instance in the specification: blocks, prefix cache, host.

Deliberately slow and simple; see `metropolis.sim.reference`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from math import inf

from metropolis._core import Profile, Request
from metropolis.sim.options import PoolOptions

SHARE = 2**20
"""Units of `Request.reused_share`."""

Tokens = tuple[tuple[int, int], ...]
"""Known tokens, each as (text, index in the text)."""


@dataclass(eq=False)
class Sequence:
    """A request and its progress."""

    id: int
    request: Request
    arrival_sim_s: float
    generated: int = 0
    """Output tokens, including those to be discarded (rule 5)."""
    had_token: bool = False
    """Whether it had generated a token before an abort that kept its KV."""
    to_prefill: int = 0
    """Prompt tokens plus those generated before its latest admission."""
    computed: int = 0
    """The number of tokens whose KV is in the GPU's cache."""
    swapped: int = 0
    """The number of tokens whose KV is in host memory or in the prefix cache."""
    copied: int = 0
    """Blocks of the swapped tokens that were copied to the host."""
    ahead: int = 0
    """Tokens decoded in the places of others while the host keeps it."""
    blocks: int = 0
    """The number of blocks that the sequence holds outside the prefix cache."""
    shared: list[Tokens] = field(default_factory=list)
    """Blocks it holds in the prefix cache, each given by all tokens up to its end."""
    first_token_sim_s: float = inf
    preempted_at: int | None = None
    """The boundary of its preemption, if it waits after one."""
    preempted: int = 0
    """Units of time waited after earlier preemptions."""
    priority: int = 0
    share: int = 0
    """What is left of the prefill of reused tokens, in units of 1 / SHARE."""
    reused: int = 0
    """Leading tokens that start from another cache; 0 once preempted."""

    def __post_init__(self) -> None:
        self.priority = self.request.priority
        self.share = int(self.request.reused_share * SHARE + 0.5)
        self.reused = self.request.reused_tokens if self.share < SHARE else 0

    @property
    def rank(self) -> tuple[int, float, int]:
        """Sort key: the smallest runs first."""
        return (self.priority, self.arrival_sim_s, self.id)

    @property
    def has_token(self) -> bool:
        """Whether a token of its answer is known."""
        return self.had_token or self.generated > 0

    @property
    def decodes(self) -> bool:
        """Whether its prefill is complete."""
        return self.computed >= self.to_prefill


@dataclass
class _CachedBlock:
    references: int
    released: int = 0
    """Sequence number of its last release; the smallest is the least recently used."""


@dataclass
class Memory:
    """The blocks of one instance and their holders."""

    profile: Profile
    options: PoolOptions
    waiting: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    cached: dict[Tokens, _CachedBlock] = field(default_factory=dict)
    kept: dict[int, Sequence] = field(default_factory=dict)
    """Aborted sequences whose KV the host keeps, by id."""
    reserved: int = 0
    """Blocks reserved for decoding until the next decision."""
    preemptions: int = 0
    swapped_blocks: int = 0
    prefix_hit_tokens: int = 0
    reused_tokens: int = 0
    releases: int = 0

    def blocks_of(self, tokens: int) -> int:
        """Number of blocks for `tokens`."""
        return -(-tokens // self.profile.block_tokens)

    def free_blocks(self) -> int:
        """Number of blocks neither held nor cached."""
        used = sum(s.blocks for s in self.running) + len(self.cached)
        return self.profile.kv_capacity_tokens // self.profile.block_tokens - used

    def available_blocks(self) -> int:
        """Number of blocks that are free, or cached and not held."""
        return self.free_blocks() + len(self.idle_blocks())

    def idle_blocks(self) -> list[Tokens]:
        """Blocks that are cached and not held, least recently used first."""
        idle = [tokens for tokens, block in self.cached.items() if not block.references]
        return sorted(idle, key=lambda tokens: self.cached[tokens].released)

    def allocate(self, sequence: Sequence, blocks: int) -> None:
        """Take available blocks, evicting cached ones if needed."""
        while self.free_blocks() < blocks:
            del self.cached[self.idle_blocks()[0]]
        sequence.blocks += blocks

    def grow(self, sequence: Sequence) -> None:
        """Allocate room for one more token."""
        self.allocate(sequence, self.growth(sequence, 1))
        sequence.computed += 1

    def growth(self, sequence: Sequence, tokens: int) -> int:
        """Number of new blocks for `tokens` more tokens."""
        return self.blocks_of(sequence.computed + tokens) - self.blocks_of(sequence.computed)

    def admit(self, sequence: Sequence) -> bool:
        """Allocate the blocks of its prefill, if they and those of its decoding fit."""
        step = self.profile.block_tokens
        sequence.to_prefill = sequence.request.prompt_tokens + sequence.generated
        found = self.found(self._known_blocks(sequence, sequence.to_prefill - 1))
        needed = self.blocks_of(sequence.to_prefill) - len(found)
        idle = sum(not self.cached[tokens].references for tokens in found)
        lookahead = self.options.decision_iterations - 1 if sequence.has_token else 0
        ahead = self.blocks_of(sequence.to_prefill + lookahead) - len(found) - needed
        kept_free = self._watermark_blocks() if self.running else 0
        if needed + ahead > self.available_blocks() - idle - self.reserved - kept_free:
            return False
        self.reserved += ahead
        self.waiting.remove(sequence)
        self.running.append(sequence)
        for tokens in found:
            self.cached[tokens].references += 1
        sequence.shared = found
        self.prefix_hit_tokens += len(found) * step
        on_gpu = 0 if self._swaps_all else len(found)
        missing = max(0, self.blocks_of(sequence.swapped) - on_gpu)
        self.swapped_blocks += missing + max(0, missing - sequence.copied)  # in, and earlier out
        sequence.computed = max(len(found) * step, sequence.swapped)
        sequence.swapped = sequence.copied = 0
        self.reused_tokens += max(0, sequence.reused - sequence.computed)
        if not sequence.share:
            sequence.computed = max(sequence.computed, sequence.reused)
        self.allocate(sequence, needed)
        return True

    def tokens_to_compute(self, sequence: Sequence) -> int:
        """Number of tokens left to compute if it is admitted now."""
        tokens = sequence.request.prompt_tokens + sequence.generated
        cached = len(self.found(self._known_blocks(sequence, tokens - 1)))
        reused = 0 if sequence.share else sequence.reused
        return tokens - max(cached * self.profile.block_tokens, sequence.swapped, reused)

    def _watermark_blocks(self) -> int:
        blocks = self.profile.kv_capacity_tokens // self.profile.block_tokens
        return int(self.options.watermark * blocks)

    def preempt(self, sequence: Sequence) -> None:
        """Release its blocks and move it back to the waiting list."""
        self.swap_out(sequence)
        self.release(sequence)
        sequence.reused = 0
        self.waiting.append(sequence)
        self.preemptions += 1

    def swap_out(self, sequence: Sequence) -> None:
        """Copy the blocks, or those outside the prefix cache, to the host, if all of them fit."""
        blocks = self.blocks_of(sequence.computed)
        swaps = self.options.preemption != "recompute"
        if swaps and self.host_blocks() + blocks <= self._host_room():
            self.share(sequence)
            sequence.swapped = sequence.computed
            sequence.copied = blocks if self._swaps_all else sequence.blocks
            self.swapped_blocks += sequence.copied

    def restore(self, sequence: Sequence) -> None:
        """Give a sequence what the host keeps of it; it decodes from its last token."""
        if kept := self.kept.pop(sequence.id, None):
            sequence.had_token, sequence.copied = kept.has_token, kept.copied
            sequence.generated = min(kept.ahead, sequence.request.output_tokens - 1)
            most = sequence.request.prompt_tokens + sequence.generated - 1
            sequence.swapped = min(kept.swapped, most)

    def fill(self, places: list[int]) -> None:
        """Rule 5: let kept sequences decode in `places`, for that many iterations in each."""
        ready = sorted(filter(self._may_fill, self.kept.values()), key=lambda s: s.rank)
        for iterations, sequence in zip(places, ready, strict=False):
            left = sequence.request.output_tokens - sequence.generated - sequence.ahead
            sequence.ahead += min(iterations, left - 1)
            sequence.swapped += min(iterations, left - 1)

    def _may_fill(self, sequence: Sequence) -> bool:
        tokens = sequence.swapped - sequence.ahead
        on_gpu = self.found(self._known_blocks(sequence, tokens))
        left = sequence.request.output_tokens - sequence.generated - sequence.ahead
        is_whole = len(on_gpu) == tokens // self.profile.block_tokens
        return sequence.has_token and left > 1 and is_whole

    @property
    def _swaps_all(self) -> bool:
        return self.options.preemption == "swap_all"

    def host_blocks(self) -> int:
        """Number of blocks swapped out to the host."""
        return sum(self.blocks_of(s.swapped) for s in [*self.waiting, *self.kept.values()])

    def _host_room(self) -> int:
        block_bytes = self.profile.kv_bytes_per_token * self.profile.block_tokens
        return int(self.profile.host_gb * 1e9 / block_bytes)

    def release(self, sequence: Sequence) -> None:
        """Remove it from the running sequences and release its blocks."""
        self.share(sequence)
        self.running.remove(sequence)
        sequence.blocks = 0
        for tokens in reversed(sequence.shared):  # last first, so that leaves are evicted first
            block = self.cached[tokens]
            block.references -= 1
            self.releases += 1
            block.released = self.releases
        sequence.shared = []

    def share(self, sequence: Sequence) -> None:
        """Move its computed blocks of known tokens into the prefix cache."""
        for tokens in self._known_blocks(sequence, sequence.computed)[len(sequence.shared) :]:
            self.cached.setdefault(tokens, _CachedBlock(0)).references += 1
            sequence.shared.append(tokens)
            sequence.blocks -= 1

    def found(self, blocks: list[Tokens]) -> list[Tokens]:
        """The first of the blocks, as long as they are cached."""
        return list(takewhile(self.cached.__contains__, blocks))

    def _known_blocks(self, sequence: Sequence, limit: int) -> list[Tokens]:
        """Whole blocks of known tokens among its first `limit` tokens."""
        return self.blocks_in(sequence.request.prefix if self.options.prefix_reuse else [], limit)

    def blocks_in(self, prefix: list[tuple[int, int]], limit: int | None = None) -> list[Tokens]:
        """Whole blocks in the first `limit` tokens of a text."""
        known = tuple((text, i) for text, tokens in prefix for i in range(tokens))[:limit]
        step = self.profile.block_tokens
        return [known[:end] for end in range(step, len(known) + 1, step)]
