// Requests that are aborted, and what can be seen of an engine between its events.
#include <algorithm>

#include "instance_engine.hpp"

namespace metropolis::detail {

bool Engine::abort(RequestId id, double now_sim_s, std::deque<Completion>& out) {
  if (const auto slot = waiting_.remove(id)) {
    leave(*slot, now_sim_s, true, out);
    if (state_ == State::kAtBoundary) reach_boundary();
    if (!waiting_.empty() && front_may_join()) cut_leap(now_sim_s);
    return true;
  }
  if (!runs(id) || std::find(aborting_.begin(), aborting_.end(), id) != aborting_.end()) {
    return false;
  }
  aborting_.push_back(id);
  if (state_ == State::kAtBoundary) {
    leave_aborted(out);
    reach_boundary();
  } else if (chunks_.empty()) {
    cut_leap(now_sim_s);
  }
  return true;
}

bool Engine::runs(RequestId id) const {
  const auto has_id = [this, id](const auto& entry) { return slab_[entry.slot].rank.id == id; };
  return std::any_of(decodings_.begin(), decodings_.end(), has_id) ||
         std::any_of(chunks_.begin(), chunks_.end(), has_id) ||
         (has_partial_ && slab_[partial_].rank.id == id);
}

// What has completed in the meantime is no longer here.
void Engine::leave_aborted(std::deque<Completion>& out) {
  std::sort(aborting_.begin(), aborting_.end());
  for (const RequestId id : aborting_) {
    if (has_partial_ && slab_[partial_].rank.id == id) {
      has_partial_ = false;
      leave(partial_, to_sim_s(now_), true, out);
      continue;
    }
    const auto found = std::find_if(decodings_.begin(), decodings_.end(),
                                    [id](const Decoding& decoding) { return decoding.id == id; });
    if (found == decodings_.end()) continue;
    const Decoding decoding = *found;
    decodings_.erase(found);
    std::make_heap(decodings_.begin(), decodings_.end());
    stop_decoding(decoding);
    leave(decoding.slot, to_sim_s(now_), true, out);
  }
  aborting_.clear();
}

std::vector<Progress> Engine::progress(double now_sim_s) const {
  std::int64_t completed = 0;
  if (state_ == State::kIterating && chunks_.empty()) {
    completed = iterations_begun(now_sim_s);
    if (to_sim_s(now_ + leap_.elapsed(completed)) > now_sim_s) --completed;
  }
  std::vector<Progress> out;
  for (const Decoding& decoding : decodings_) {
    const std::int64_t tokens = std::min<std::int64_t>(decoded_tokens(decoding) + completed,
                                                       slab_[decoding.slot].output_tokens);
    out.push_back({decoding.id, static_cast<std::int32_t>(tokens)});
  }
  const auto prefilling = [&](Slot slot) {
    out.push_back({slab_[slot].rank.id, slab_[slot].generated_tokens});
  };
  for (const Chunk& chunk : chunks_) prefilling(chunk.slot);
  if (has_partial_) prefilling(partial_);
  return out;
}

InstanceStatus Engine::status(double now_sim_s) const {
  const std::int64_t capacity = profile_.kv_capacity_tokens / profile_.block_tokens;
  std::int64_t used = capacity - available_blocks();
  if (state_ == State::kIterating && chunks_.empty()) {
    used += decode_blocks(iteration_ + 1, iterations_begun(now_sim_s) - 1);
  }
  return {.kv_used_blocks = used,
          .kv_cached_blocks = std::min(prefixes_.idle_blocks(), capacity - used),
          .kv_capacity_blocks = capacity,
          .kv_host_blocks = host_used_blocks_,
          .running = decoding() + static_cast<std::int64_t>(chunks_.size()) + has_partial_,
          .waiting = static_cast<std::int64_t>(waiting_.size()),
          .preemptions = preemptions_,
          .swapped_blocks = swapped_blocks_,
          .prefix_hit_tokens = prefix_hit_tokens_};
}

}  // namespace metropolis::detail
