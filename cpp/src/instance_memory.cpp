// KV blocks of one engine: allocation, admission and preemption.
#include <algorithm>
#include <utility>

#include "instance_engine.hpp"

namespace metropolis::detail {

// New blocks for the decoding sequences in `count` iterations from `iteration` on.
std::int64_t Engine::decode_blocks(std::int64_t iteration, std::int64_t count) const {
  const std::int64_t period = profile_.block_tokens;
  std::int64_t blocks = count / period * decoding();
  std::int64_t phase = (period - iteration % period) % period;
  for (std::int64_t i = count % period; i > 0; --i) {
    blocks += phases_[static_cast<std::size_t>(phase)];
    phase = phase == 0 ? period - 1 : phase - 1;
  }
  return blocks;
}

void Engine::allocate(std::int64_t blocks) {
  free_blocks_ -= blocks;
  for (; free_blocks_ < 0; ++free_blocks_) prefixes_.evict();
}

bool Engine::preempt_until_decodes_fit() {
  const std::int64_t before = preemptions_;
  while (decode_blocks(iteration_, decision_iterations_) > available_blocks()) preempt_worst();
  return preemptions_ > before;
}

void Engine::preempt_worst() {
  auto worst = std::max_element(decodings_.begin(), decodings_.end(),
                                [this](const Decoding& a, const Decoding& b) {
                                  return slab_[a.slot].rank < slab_[b.slot].rank;
                                });
  Slot slot = worst->slot;
  if (has_partial_ && slab_[slot].rank < slab_[partial_].rank) {
    slot = partial_;
    has_partial_ = false;
  } else {
    stop_decoding(*worst);
    decodings_.erase(worst);
    std::make_heap(decodings_.begin(), decodings_.end());
  }
  swap_out(slab_[slot]);
  release_blocks(slab_[slot]);
  slab_[slot].reused_tokens = 0;
  if (slab_[slot].generated_tokens > 0) slab_[slot].preempted_at = now_;
  waiting_.push(slab_[slot].rank, slot);
  ++preemptions_;
}

void Engine::swap_out(Sequence& sequence) {
  const std::int64_t blocks = blocks_of(sequence.computed_tokens);
  if (host_used_blocks_ + blocks > host_blocks_) return;
  share_blocks(sequence);
  const std::int64_t copied = swaps_all_ ? blocks : sequence.own_blocks;
  sequence.swapped = {static_cast<std::int32_t>(sequence.computed_tokens),
                      static_cast<std::int32_t>(copied), sequence.has_token()};
  host_used_blocks_ += blocks;
  swapped_blocks_ += copied;
}

// Keeps the host's copy after the sequence has left, which shares no more blocks.
void Engine::keep_swapped(Sequence& sequence) {
  if (sequence.swapped.tokens > 0) {
    kept_[sequence.rank.id] = {sequence.rank, sequence.swapped, std::move(sequence.known),
                               sequence.output_tokens - sequence.generated_tokens};
  }
  sequence.swapped = {};
}

// Resumes with the KV that the host kept, except for the last token, from which it decodes.
void Engine::restore_kept(Sequence& sequence) {
  const auto kept = kept_.find(sequence.rank.id);
  if (kept == kept_.end()) return;
  const auto [tokens, copied_blocks, has_token] = kept->second.swapped;
  sequence.generated_tokens = std::min(kept->second.ahead_tokens, sequence.output_tokens - 1);
  const auto most = static_cast<std::int32_t>(sequence.prefill_tokens() - 1);
  sequence.swapped = {std::min(tokens, most), copied_blocks, has_token};
  sequence.had_token = has_token;
  host_used_blocks_ -= blocks_of(tokens) - blocks_of(sequence.swapped.tokens);
  kept_.erase(kept);
}

// Rule 5 with `surplus`: lets kept sequences decode in the places that became free.
void Engine::fill_places() {
  std::vector<Kept*> ready;
  if (!free_places_.empty() && free_places_.front() > 0) {
    for (auto& [id, kept] : kept_) ready.push_back(&kept);
  }
  std::ranges::sort(ready, [](const Kept* a, const Kept* b) { return a->rank < b->rank; });
  auto next = ready.begin();
  for (const std::int64_t iterations : free_places_) {
    while (next != ready.end() && !may_fill(**next)) ++next;
    if (next == ready.end()) return;
    Kept& kept = **next++;
    const auto tokens = static_cast<std::int32_t>(
        std::min<std::int64_t>(iterations, kept.left_tokens - kept.ahead_tokens - 1));
    host_used_blocks_ -= blocks_of(kept.swapped.tokens);
    kept.ahead_tokens += tokens;
    kept.swapped.tokens += tokens;
    host_used_blocks_ += blocks_of(kept.swapped.tokens);
  }
}

bool Engine::may_fill(const Kept& kept) const {
  if (!kept.swapped.has_token || kept.left_tokens - kept.ahead_tokens <= 1) return false;
  const std::int64_t tokens = kept.swapped.tokens - kept.ahead_tokens;
  PrefixBlocks blocks = blocks_within(kept.known.get(), tokens);
  if (blocks.left() < tokens / profile_.block_tokens) return false;
  while (blocks.left() > 0) {
    if (prefixes_.find(blocks.next()) == PrefixCache::NONE) return false;
  }
  return true;
}

// Copies back the blocks that the prefix cache lacks; those it evicted were copied out as well.
// With SWAP_ALL all blocks are copied back.
void Engine::swap_in(Sequence& sequence) {
  if (sequence.swapped.tokens == 0) return;
  const std::int64_t blocks = blocks_of(sequence.swapped.tokens);
  const std::int64_t on_gpu = swaps_all_ ? 0 : sequence.shared_blocks;
  const std::int64_t missing = std::max<std::int64_t>(0, blocks - on_gpu);
  host_used_blocks_ -= blocks;
  swapped_blocks_ += missing + std::max<std::int64_t>(0, missing - sequence.swapped.copied_blocks);
  sequence.computed_tokens =
      std::max<std::int64_t>(sequence.computed_tokens, sequence.swapped.tokens);
  sequence.swapped = {};
}

// Whole blocks of known tokens among the first `tokens`.
PrefixBlocks Engine::blocks_within(const KnownPrefix* known, std::int64_t tokens) const {
  if (known == nullptr) return {};
  const std::int64_t shareable = std::min(known->tokens, tokens);
  return {*known, shareable / profile_.block_tokens, profile_.block_tokens};
}

// Tokens that a resumed sequence may decode before the next decision (rule 5).
std::int64_t Engine::lookahead(const Sequence& sequence) const {
  return sequence.has_token() ? decision_iterations_ - 1 : 0;
}

bool Engine::fits(const Sequence& sequence) const {
  std::int64_t needed = blocks_of(sequence.prefill_tokens() + lookahead(sequence));
  std::int64_t available = available_blocks() - reserved_blocks_;
  if (!decodings_.empty() || has_partial_ || !chunks_.empty()) available -= watermark_blocks_;
  if (needed <= available) return true;
  PrefixBlocks blocks = blocks_within(sequence.known.get(), sequence.prefill_tokens() - 1);
  while (needed > available && blocks.left() > 0) {
    const PrefixCache::Block block = prefixes_.find(blocks.next());
    if (block == PrefixCache::NONE) break;
    --needed;
    if (prefixes_.idle(block)) --available;
  }
  return needed <= available;
}

// Tokens that are left to compute if the sequence is admitted now.
std::int64_t Engine::tokens_to_compute(const Sequence& sequence) const {
  std::int64_t computed = sequence.reused_share == 0 ? sequence.reused_tokens : 0;
  computed = std::max<std::int64_t>(computed, sequence.swapped.tokens);
  std::int64_t cached = 0;
  PrefixBlocks blocks = blocks_within(sequence.known.get(), sequence.prefill_tokens() - 1);
  while (blocks.left() > 0 && prefixes_.find(blocks.next()) != PrefixCache::NONE) {
    cached += profile_.block_tokens;
  }
  return sequence.prefill_tokens() - std::max(computed, cached);
}

// Allocates the blocks of the prefill. Cached blocks leave at least one token to compute, from
// which decoding starts.
void Engine::admit(Sequence& sequence) {
  if (sequence.preempted_at != RUNS) {
    sequence.preempted += now_ - sequence.preempted_at;
    sequence.preempted_at = RUNS;
  }
  PrefixBlocks blocks = blocks_within(sequence.known.get(), sequence.prefill_tokens() - 1);
  while (blocks.left() > 0) {
    const PrefixCache::Block block = prefixes_.find(blocks.next());
    if (block == PrefixCache::NONE) break;
    prefixes_.acquire(block);
    sequence.last_shared = block;
    ++sequence.shared_blocks;
  }
  sequence.computed_tokens = std::int64_t{sequence.shared_blocks} * profile_.block_tokens;
  prefix_hit_tokens_ += sequence.computed_tokens;
  swap_in(sequence);
  reuse(sequence);
  const std::int64_t whole = blocks_of(sequence.prefill_tokens());
  reserved_blocks_ += blocks_of(sequence.prefill_tokens() + lookahead(sequence)) - whole;
  sequence.own_blocks = whole - sequence.shared_blocks;
  allocate(sequence.own_blocks);
}

// Counts the tokens that another cache makes cheaper; those without any cost are computed.
void Engine::reuse(Sequence& sequence) {
  if (sequence.reused_tokens <= sequence.computed_tokens) return;
  reused_tokens_ += sequence.reused_tokens - sequence.computed_tokens;
  if (sequence.reused_share == 0) sequence.computed_tokens = sequence.reused_tokens;
}

void Engine::add_prefill(Slot slot, std::int64_t& budget, PrefillWork& work) {
  const Sequence& sequence = slab_[slot];
  const std::int64_t left = sequence.prefill_tokens() - sequence.computed_tokens;
  const std::int64_t chunk = chunked_prefill_ ? std::min(budget, left) : left;
  work.add(chunk, sequence.computed_tokens);
  if (const std::int64_t reused = sequence.reused_tokens - sequence.computed_tokens; reused > 0) {
    work.reuse(std::min(reused, chunk), sequence.computed_tokens, sequence.reused_share);
  }
  budget -= chunk;
  chunks_.push_back({slot, static_cast<std::int32_t>(chunk)});
}

void Engine::start_decoding(Slot slot) {
  Sequence& sequence = slab_[slot];
  const std::int64_t kv = sequence.prefill_tokens();  // with the next iteration's token
  const std::int64_t period = profile_.block_tokens;
  const std::int64_t phase = ((kv - 1 - iteration_) % period + period) % period;
  sequence.phase = static_cast<std::int32_t>(phase);
  ++phases_[static_cast<std::size_t>(phase)];
  decode_kv_tokens_ += kv;
  decodings_.push_back(
      {iteration_ + sequence.output_tokens - sequence.generated_tokens, sequence.rank.id, slot});
  std::push_heap(decodings_.begin(), decodings_.end());
}

// Removes a sequence from the aggregates and updates its own counts.
void Engine::stop_decoding(const Decoding& decoding) {
  Sequence& sequence = slab_[decoding.slot];
  --phases_[static_cast<std::size_t>(sequence.phase)];
  const std::int64_t decoded = decoded_tokens(decoding);
  const std::int64_t kv = sequence.prompt_tokens + decoded;
  sequence.generated_tokens =
      static_cast<std::int32_t>(std::min<std::int64_t>(decoded, sequence.output_tokens));
  decode_kv_tokens_ -= kv;
  sequence.computed_tokens = kv - 1;
  sequence.own_blocks = blocks_of(kv - 1) - sequence.shared_blocks;
}

// Moves its computed blocks of known tokens into the prefix cache.
void Engine::share_blocks(Sequence& sequence) {
  if (!sequence.known) return;
  PrefixBlocks blocks = blocks_within(sequence.known.get(), sequence.computed_tokens);
  if (blocks.left() <= sequence.shared_blocks) return;
  for (std::int32_t i = 0; i < sequence.shared_blocks; ++i) blocks.next();
  while (blocks.left() > 0) {
    const std::uint64_t hash = blocks.next();
    PrefixCache::Block block = prefixes_.find(hash);
    if (block == PrefixCache::NONE) {
      block = prefixes_.insert(hash, sequence.last_shared);
    } else {
      prefixes_.acquire(block);
      ++free_blocks_;  // its duplicate
    }
    sequence.last_shared = block;
    ++sequence.shared_blocks;
    --sequence.own_blocks;
  }
}

void Engine::release_blocks(Sequence& sequence) {
  share_blocks(sequence);
  free_blocks_ += sequence.own_blocks;
  prefixes_.release(sequence.last_shared);
  sequence.own_blocks = 0;
  sequence.shared_blocks = 0;
  sequence.last_shared = PrefixCache::NONE;
  sequence.computed_tokens = 0;
}

void Engine::remove(Slot slot, double now_sim_s, bool aborted, std::deque<Completion>& out) {
  Sequence& sequence = slab_[slot];
  release_blocks(sequence);
  host_used_blocks_ -= blocks_of(sequence.swapped.tokens);
  double preempted_sim_s = to_seconds(sequence.preempted);
  if (sequence.preempted_at != RUNS) preempted_sim_s += now_sim_s - to_sim_s(sequence.preempted_at);
  out.push_back({sequence.rank.id, index_, sequence.generated_tokens, sequence.first_token_sim_s,
                 now_sim_s, preempted_sim_s, aborted});
  free_slots_.push_back(slot);
}

}  // namespace metropolis::detail
