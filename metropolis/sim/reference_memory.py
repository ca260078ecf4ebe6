"""The KV memory of one instance in the specification: blocks, prefix cache, host.

Slow and plain on purpose; see `metropolis.sim.reference`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from math import inf

from metropolis._core import Profile, Request
from metropolis.sim.options import PoolOptions

Tokens = tuple[tuple[int, int], ...]
"""Known tokens: which text, and which of its tokens."""


@dataclass(eq=False)
class Sequence:
    """A request and how far it is."""

    id: int
    request: Request
    arrival_sim_s: float
    generated: int = 0
    """With what will be thrown away, see rule 5."""
    to_prefill: int = 0
    """Prompt, and what had been generated when it was admitted (again)."""
    computed: int = 0
    """Tokens in the KV cache."""
    swapped: int = 0
    """Tokens in host memory, or in the prefix cache."""
    copied: int = 0
    """Blocks of theirs that were copied to the host when it left."""
    blocks: int = 0
    """Blocks it holds, without those in the prefix cache."""
    shared: list[Tokens] = field(default_factory=list)
    """Blocks it holds in the prefix cache, by all tokens up to their ends."""
    first_token_sim_s: float = inf

    @property
    def rank(self) -> tuple[int, float, int]:
        """The smallest goes first."""
        return (self.request.priority, self.arrival_sim_s, self.id)

    @property
    def decodes(self) -> bool:
        """Whether its prefill has ended."""
        return self.computed >= self.to_prefill


@dataclass
class _CachedBlock:
    references: int
    released: int = 0
    """Counts releases, so that the smallest is the least recently used."""


@dataclass
class Memory:
    """Who holds which blocks."""

    profile: Profile
    options: PoolOptions
    waiting: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    cached: dict[Tokens, _CachedBlock] = field(default_factory=dict)
    kept: dict[int, tuple[int, int]] = field(default_factory=dict)
    """`swapped` and `copied` of who has left, by id."""
    reserved: int = 0
    """For what decodes until the next decision."""
    preemptions: int = 0
    swapped_blocks: int = 0
    prefix_hit_tokens: int = 0
    releases: int = 0

    def blocks_of(self, tokens: int) -> int:
        """How many hold `tokens`."""
        return -(-tokens // self.profile.block_tokens)

    def free_blocks(self) -> int:
        """Held by nobody, and not cached."""
        used = sum(s.blocks for s in self.running) + len(self.cached)
        return self.profile.kv_capacity_tokens // self.profile.block_tokens - used

    def available_blocks(self) -> int:
        """Free, or cached and held by nobody."""
        return self.free_blocks() + len(self.idle_blocks())

    def idle_blocks(self) -> list[Tokens]:
        """Cached and held by nobody, least recently used first."""
        idle = [tokens for tokens, block in self.cached.items() if not block.references]
        return sorted(idle, key=lambda tokens: self.cached[tokens].released)

    def allocate(self, sequence: Sequence, blocks: int) -> None:
        """Take blocks that are available."""
        while self.free_blocks() < blocks:
            del self.cached[self.idle_blocks()[0]]
        sequence.blocks += blocks

    def grow(self, sequence: Sequence) -> None:
        """Make room for one more token."""
        self.allocate(sequence, self.growth(sequence, 1))
        sequence.computed += 1

    def growth(self, sequence: Sequence, tokens: int) -> int:
        """New blocks that so many more tokens need."""
        return self.blocks_of(sequence.computed + tokens) - self.blocks_of(sequence.computed)

    def admit(self, sequence: Sequence) -> bool:
        """Give it the blocks of its prefill if there is room for them, and for what it decodes."""
        step = self.profile.block_tokens
        sequence.to_prefill = sequence.request.prompt_tokens + sequence.generated
        known = self._known_blocks(sequence, sequence.to_prefill - 1)
        found = list(takewhile(self.cached.__contains__, known))
        needed = self.blocks_of(sequence.to_prefill) - len(found)
        idle = sum(not self.cached[tokens].references for tokens in found)
        lookahead = self.options.decision_iterations - 1 if sequence.generated else 0
        ahead = self.blocks_of(sequence.to_prefill + lookahead) - len(found) - needed
        if needed + ahead > self.available_blocks() - idle - self.reserved:
            return False
        self.reserved += ahead
        self.waiting.remove(sequence)
        self.running.append(sequence)
        for tokens in found:
            self.cached[tokens].references += 1
        sequence.shared = found
        self.prefix_hit_tokens += len(found) * step
        missing = max(0, self.blocks_of(sequence.swapped) - len(found))
        self.swapped_blocks += missing + max(0, missing - sequence.copied)  # in; out before that
        sequence.computed = max(len(found) * step, sequence.swapped)
        sequence.swapped = sequence.copied = 0
        self.allocate(sequence, needed)
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Take its blocks; it waits again."""
        self.swap_out(sequence)
        self.release(sequence)
        self.waiting.append(sequence)
        self.preemptions += 1

    def swap_out(self, sequence: Sequence) -> None:
        """Copy what the prefix cache does not hold to the host, if there is room for all."""
        blocks = self.blocks_of(sequence.computed)
        if self.options.preemption == "swap" and self.host_blocks() + blocks <= self._host_room():
            self.share(sequence)
            sequence.swapped, sequence.copied = sequence.computed, sequence.blocks
            self.swapped_blocks += sequence.blocks

    def host_blocks(self) -> int:
        """Swapped out."""
        tokens = [*(s.swapped for s in self.waiting), *(tokens for tokens, _ in self.kept.values())]
        return sum(map(self.blocks_of, tokens))

    def _host_room(self) -> int:
        block_bytes = self.profile.kv_bytes_per_token * self.profile.block_tokens
        return int(self.profile.host_gb * 1e9 / block_bytes)

    def release(self, sequence: Sequence) -> None:
        """It runs no longer."""
        self.share(sequence)
        self.running.remove(sequence)
        sequence.blocks = 0
        for tokens in reversed(sequence.shared):  # the last first: leaves are evicted first
            block = self.cached[tokens]
            block.references -= 1
            self.releases += 1
            block.released = self.releases
        sequence.shared = []

    def share(self, sequence: Sequence) -> None:
        """Put what it has computed of its known tokens into the cache."""
        for tokens in self._known_blocks(sequence, sequence.computed)[len(sequence.shared) :]:
            self.cached.setdefault(tokens, _CachedBlock(0)).references += 1
            sequence.shared.append(tokens)
            sequence.blocks -= 1

    def _known_blocks(self, sequence: Sequence, limit: int) -> list[Tokens]:
        """Whole blocks of known tokens among its first `limit` tokens."""
        prefix = sequence.request.prefix if self.options.prefix_reuse else []
        known = tuple((text, i) for text, tokens in prefix for i in range(tokens))[:limit]
        step = self.profile.block_tokens
        return [known[:end] for end in range(step, len(known) + 1, step)]
