// KV blocks of one engine: who holds how many, admission and preemption.
#include <algorithm>

#include "instance_engine.hpp"

namespace metropolis::detail {

// New blocks of the decoding sequences in `count` iterations from `iteration` on.
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
  while (free_blocks_ < blocks) free_blocks_ += prefixes_.evict();
  free_blocks_ -= blocks;
}

bool Engine::preempt_until_decodes_fit() {
  const std::int64_t before = preemptions_;
  while (decode_blocks(iteration_, 1) > available_blocks()) preempt_worst();
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
  release_blocks(slab_[slot]);
  waiting_.push(slab_[slot].rank, slot);
  ++preemptions_;
}

// The cached prefix this sequence begins with, unless it is longer than what it can share.
PrefixCache::Handle Engine::usable_prefix(const Sequence& sequence) {
  if (sequence.shareable_blocks == 0) return prefixes_.none();
  const PrefixCache::Handle entry = prefixes_.find(sequence.prefix_id);
  return entry != prefixes_.none() && entry->blocks <= sequence.shareable_blocks ? entry
                                                                                 : prefixes_.none();
}

bool Engine::fits(const Sequence& sequence) {
  std::int64_t needed = ceil_div(sequence.prefill_tokens(), profile_.block_tokens);
  std::int64_t available = available_blocks();
  if (const auto prefix = usable_prefix(sequence); prefix != prefixes_.none()) {
    needed -= prefix->blocks;
    if (prefix->references == 0) available -= prefix->blocks;
  }
  return needed <= available;
}

void Engine::admit(Sequence& sequence) {
  sequence.own_blocks = ceil_div(sequence.prefill_tokens(), profile_.block_tokens);
  sequence.computed_tokens = 0;
  if (const auto prefix = usable_prefix(sequence); prefix != prefixes_.none()) {
    prefixes_.acquire(prefix);
    sequence.prefix = prefix;
    sequence.shared_blocks = static_cast<std::int32_t>(prefix->blocks);
    sequence.own_blocks -= prefix->blocks;
    sequence.computed_tokens = prefix->blocks * profile_.block_tokens;
    prefix_hit_tokens_ += sequence.computed_tokens;
  }
  allocate(sequence.own_blocks);
}

void Engine::add_prefill(Slot slot, std::int64_t& budget, PrefillWork& work) {
  const Sequence& sequence = slab_[slot];
  const std::int64_t chunk = std::min(budget, sequence.prefill_tokens() - sequence.computed_tokens);
  work.add(chunk, sequence.computed_tokens);
  budget -= chunk;
  chunks_.push_back({slot, static_cast<std::int32_t>(chunk)});
}

void Engine::start_decoding(Slot slot) {
  Sequence& sequence = slab_[slot];
  const std::int64_t kv = sequence.prefill_tokens();  // with the token the next iteration writes
  const std::int64_t period = profile_.block_tokens;
  const std::int64_t phase = ((kv - 1 - iteration_) % period + period) % period;
  sequence.phase = static_cast<std::int32_t>(phase);
  ++phases_[static_cast<std::size_t>(phase)];
  decode_kv_tokens_ += kv;
  decodings_.push_back(
      {iteration_ + sequence.output_tokens - sequence.generated_tokens, sequence.rank.id, slot});
  std::push_heap(decodings_.begin(), decodings_.end());
}

// Takes a sequence out of the aggregates and brings its own counts up to date.
void Engine::stop_decoding(const Decoding& decoding) {
  Sequence& sequence = slab_[decoding.slot];
  --phases_[static_cast<std::size_t>(sequence.phase)];
  sequence.generated_tokens = static_cast<std::int32_t>(generated_tokens(decoding));
  const std::int64_t kv = sequence.prefill_tokens();
  decode_kv_tokens_ -= kv;
  sequence.own_blocks = ceil_div(kv - 1, profile_.block_tokens) - sequence.shared_blocks;
}

// Leaves a prefix just computed in the cache, in blocks that so far were the sequence's own.
void Engine::share_prefix(Sequence& sequence) {
  if (sequence.shareable_blocks == 0 || prefixes_.find(sequence.prefix_id) != prefixes_.none()) {
    return;
  }
  sequence.prefix = prefixes_.insert(sequence.prefix_id, sequence.shareable_blocks);
  sequence.shared_blocks = sequence.shareable_blocks;
  sequence.own_blocks -= sequence.shareable_blocks;
}

void Engine::release_blocks(Sequence& sequence) {
  free_blocks_ += sequence.own_blocks;
  if (sequence.shared_blocks > 0) prefixes_.release(sequence.prefix);
  sequence.own_blocks = 0;
  sequence.shared_blocks = 0;
}

void Engine::leave(Slot slot, double now_sim_s, bool aborted, std::deque<Completion>& out) {
  Sequence& sequence = slab_[slot];
  release_blocks(sequence);
  out.push_back({sequence.rank.id, index_, sequence.generated_tokens, sequence.first_token_sim_s,
                 now_sim_s, aborted});
  free_slots_.push_back(slot);
}

}  // namespace metropolis::detail
