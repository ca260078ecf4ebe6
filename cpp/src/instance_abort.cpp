// Aborts, and the observable state of an engine between events.
#include <algorithm>

#include "instance_engine.hpp"

namespace metropolis::detail {

bool Engine::abort(RequestId id, bool keep, double now_sim_s, std::deque<Completion>& out) {
  if (const auto slot = waiting_.remove(id)) {
    if (keep) keep_swapped(slab_[*slot]);
    remove(*slot, now_sim_s, true, out);
    if (state_ == State::AT_BOUNDARY) reach_boundary();
    if (!waiting_.empty() && front_may_join()) cut_leap(now_sim_s);
    return true;
  }
  if (!may_abort(id)) return false;
  aborting_.push_back({id, keep});
  if (state_ == State::AT_BOUNDARY) {
    remove_aborted(out);
    reach_boundary();
  } else if (chunks_.empty()) {
    cut_leap(now_sim_s);
  }
  return true;
}

void Engine::discard(RequestId id) {
  for (Aborting& one : aborting_) one.keep = one.keep && one.id != id;
  const auto kept = kept_.find(id);
  if (kept == kept_.end()) return;
  host_used_blocks_ -= blocks_of(kept->second.swapped.tokens);
  kept_.erase(kept);
}

bool Engine::runs(RequestId id) const {
  const auto has_id = [this, id](const auto& entry) { return slab_[entry.slot].rank.id == id; };
  return std::any_of(decodings_.begin(), decodings_.end(), has_id) ||
         std::any_of(chunks_.begin(), chunks_.end(), has_id) ||
         (has_partial_ && slab_[partial_].rank.id == id);
}

// Skips requests that have completed in the meantime.
void Engine::remove_aborted(std::deque<Completion>& out) {
  std::sort(aborting_.begin(), aborting_.end());
  for (const auto& [id, keep] : aborting_) {
    Slot slot = partial_;
    if (has_partial_ && slab_[partial_].rank.id == id) {
      has_partial_ = false;
    } else {
      const auto found = std::find_if(decodings_.begin(), decodings_.end(),
                                      [&](const Decoding& decoding) { return decoding.id == id; });
      if (found == decodings_.end()) continue;
      slot = found->slot;
      stop_decoding(*found);
      decodings_.erase(found);
      std::make_heap(decodings_.begin(), decodings_.end());
    }
    if (keep) {
      swap_out(slab_[slot]);
      keep_swapped(slab_[slot]);
    }
    remove(slot, to_sim_s(now_), true, out);
  }
  aborting_.clear();
}

// Completed iterations of the current leap.
std::int64_t Engine::decoded_in_leap(double now_sim_s) const {
  if (state_ != State::ITERATING || !chunks_.empty()) return 0;
  const std::int64_t begun = iterations_begun(now_sim_s);
  return to_sim_s(now_ + leap_.elapsed(begun)) > now_sim_s ? begun - 1 : begun;
}

// Blocks that decoding has taken within the current leap; `free_blocks_` does not count them yet.
std::int64_t Engine::allocated_in_leap(double now_sim_s) const {
  if (state_ != State::ITERATING || !chunks_.empty()) return 0;
  return decode_blocks(iteration_ + 1, iterations_begun(now_sim_s) - 1);
}

std::vector<Progress> Engine::progress(double now_sim_s) const {
  const std::int64_t completed = decoded_in_leap(now_sim_s);
  std::vector<Progress> out;
  for (const Decoding& decoding : decodings_) {
    const std::int64_t tokens = std::min<std::int64_t>(decoded_tokens(decoding) + completed,
                                                       slab_[decoding.slot].output_tokens);
    out.push_back({decoding.id, static_cast<std::int32_t>(tokens)});
  }
  const auto add_prefilling = [&](Slot slot) {
    out.push_back({slab_[slot].rank.id, slab_[slot].generated_tokens});
  };
  for (const Chunk& chunk : chunks_) add_prefilling(chunk.slot);
  if (has_partial_) add_prefilling(partial_);
  return out;
}

std::vector<Progress> Engine::preempted() const {
  std::vector<Progress> out;
  waiting_.for_each([&](Slot slot) {
    const Sequence& sequence = slab_[slot];
    if (sequence.generated_tokens > 0) out.push_back({sequence.rank.id, sequence.generated_tokens});
  });
  return out;
}

std::int64_t Engine::sequence_tokens(double now_sim_s) const {
  std::int64_t tokens = 0;
  for (const Progress& one : progress(now_sim_s)) {
    if (!is_aborting(one.id)) tokens += one.output_tokens;
  }
  const auto add_prompt = [&](Slot slot) {
    if (!is_aborting(slab_[slot].rank.id)) tokens += slab_[slot].prompt_tokens;
  };
  for (const Decoding& decoding : decodings_) add_prompt(decoding.slot);
  for (const Chunk& chunk : chunks_) add_prompt(chunk.slot);
  if (has_partial_) add_prompt(partial_);
  waiting_.for_each([&](Slot slot) { tokens += slab_[slot].prefill_tokens(); });
  return tokens;
}

InstanceStatus Engine::status(double now_sim_s) const {
  const std::int64_t capacity = profile_.kv_capacity_tokens / profile_.block_tokens;
  const std::int64_t used = capacity - available_blocks() + allocated_in_leap(now_sim_s);
  return {.kv_used_blocks = used,
          .kv_cached_blocks = std::min(prefixes_.idle_blocks(), capacity - used),
          .kv_capacity_blocks = capacity,
          .kv_host_blocks = host_used_blocks_,
          .running = decoding() + static_cast<std::int64_t>(chunks_.size()) + has_partial_,
          .waiting = static_cast<std::int64_t>(waiting_.size()),
          .preemptions = preemptions_,
          .swapped_blocks = swapped_blocks_,
          .prefix_hit_tokens = prefix_hit_tokens_,
          .reused_tokens = reused_tokens_,
          .sequence_tokens = sequence_tokens(now_sim_s)};
}

std::int64_t Engine::cached_tokens(const std::vector<Segment>& prefix, double now_sim_s) const {
  const KnownPrefix known(prefix);
  PrefixBlocks blocks(known, known.tokens / profile_.block_tokens, profile_.block_tokens);
  std::vector<PrefixCache::Block> chain;
  while (blocks.left() > 0) {
    const PrefixCache::Block block = prefixes_.find(blocks.next());
    if (block == PrefixCache::NONE) break;
    chain.push_back(block);
  }
  const std::int64_t evictions = allocated_in_leap(now_sim_s) - free_blocks_;
  return static_cast<std::int64_t>(prefixes_.left_after(evictions, chain)) * profile_.block_tokens;
}

}  // namespace metropolis::detail
