#include "instance_engine.hpp"

#include <algorithm>
#include <cmath>

namespace metropolis::detail {

Engine::Engine(const Profile& profile, const CostModel& cost, const InstancePoolOptions& options,
               std::int32_t index)
    : profile_(profile),
      cost_(cost),
      prefix_reuse_(options.prefix_reuse),
      decision_iterations_(options.decision_iterations),
      prefill_first_(options.schedule == Schedule::PREFILL_FIRST),
      chunked_prefill_(options.chunked_prefill),
      surplus_(options.surplus),
      swaps_all_(options.preemption == Preemption::SWAP_ALL),
      watermark_blocks_(static_cast<std::int64_t>(
          options.watermark *
          static_cast<double>(profile.kv_capacity_tokens / profile.block_tokens))),
      host_blocks_(options.preemption == Preemption::RECOMPUTE
                       ? 0
                       : static_cast<std::int64_t>(profile.host_gb * 1e9 / block_bytes(profile))),
      index_(index),
      free_blocks_(profile.kv_capacity_tokens / profile.block_tokens),
      next_event_sim_s_(NEVER),
      phases_(static_cast<std::size_t>(profile.block_tokens)) {}

void Engine::enqueue(RequestId id, const Request& request, double now_sim_s) {
  Slot slot = static_cast<Slot>(slab_.size());
  if (free_slots_.empty()) {
    slab_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  const bool known = prefix_reuse_ && !request.prefix.empty();
  const std::int32_t share = share_units(request.reused_share);
  slab_[slot] = {.rank = {request.priority, now_sim_s, id},
                 .first_token_sim_s = NEVER,
                 .known = known ? std::make_unique<KnownPrefix>(request.prefix) : nullptr,
                 .prompt_tokens = request.prompt_tokens,
                 .output_tokens = request.output_tokens,
                 .generated_tokens = 0,
                 .last_shared = PrefixCache::NONE,
                 .computed_tokens = 0,
                 .swapped = {},
                 .preempted_at = RUNS,
                 .preempted = 0,
                 .own_blocks = 0,
                 .shared_blocks = 0,
                 .phase = 0,
                 .reused_tokens = share < WHOLE_SHARE ? request.reused_tokens : 0,
                 .reused_share = share,
                 .had_token = false};
  restore_kept(slab_[slot]);
  waiting_.push(slab_[slot].rank, slot);
  if (state_ == State::IDLE) {
    origin_sim_s_ = now_sim_s;
    now_ = 0;
    reach_boundary();
  } else if (waiting_.front() == slot && front_may_join()) {
    cut_leap(now_sim_s);
  }
}

void Engine::reprioritize(const Priorities& priorities, double now_sim_s) {
  for (Sequence& sequence : slab_) {
    const auto found = priorities.find(sequence.rank.id);
    if (found != priorities.end()) sequence.rank.priority = found->second;
  }
  waiting_.rerank([this](Slot slot) { return slab_[slot].rank; });
  if (!waiting_.empty() && front_may_join()) cut_leap(now_sim_s);
}

void Engine::step(std::deque<Completion>& out) {
  if (state_ == State::AT_BOUNDARY) {
    begin_iteration();
  } else {
    end_iteration(out);
  }
}

double Engine::busy_sim_s(double now_sim_s) const {
  const double done = to_seconds(busy_);
  return state_ == State::ITERATING ? done + std::max(0.0, now_sim_s - to_sim_s(now_)) : done;
}

// A boundary is due just after its instant, so that it sees the requests submitted at it.
void Engine::reach_boundary() {
  const bool idle = decodings_.empty() && !has_partial_ && waiting_.empty();
  state_ = idle ? State::IDLE : State::AT_BOUNDARY;
  next_event_sim_s_ = idle ? NEVER : std::nextafter(to_sim_s(now_), NEVER);
}

void Engine::begin_iteration() {
  PrefillWork work;
  bool preempted = false;
  reserved_blocks_ = 0;
  if (prefill_first_) add_prefills(profile_.chunk_tokens, true, work);
  if (decodes()) {
    preempted = preempt_until_decodes_fit();
    allocate(decode_blocks(iteration_, 1));
    reserved_blocks_ = decode_blocks(iteration_ + 1, decision_iterations_ - 1);
    if (!prefill_first_) add_prefills(profile_.chunk_tokens - decoding(), !preempted, work);
  }
  if (work.chunks == 0) {
    begin_leap(preempted ? 1 : decodings_.front().last_iteration - iteration_);
  } else {
    leap_ = {decodes() ? cost_.mixed(decoding(), decode_kv_tokens_, work) : cost_.mixed(0, 0, work),
             0};
    leap_iterations_ = 1;
  }
  leap_.once = cost_.swap(swapped_blocks_ - charged_blocks_);
  charged_blocks_ = swapped_blocks_;
  for (const Slot slot : resumed_) {
    double& first_token_sim_s = slab_[slot].first_token_sim_s;
    if (first_token_sim_s == NEVER) first_token_sim_s = to_sim_s(now_ + leap_.elapsed(1));
  }
  resumed_.clear();
  state_ = State::ITERATING;
  next_event_sim_s_ = to_sim_s(now_ + leap_.elapsed(leap_iterations_));
}

// Rule 3, for `budget` new tokens. The partial prefill continues even if nothing is admitted.
void Engine::add_prefills(std::int64_t budget, bool admits, PrefillWork& work) {
  if (has_partial_ && budget > 0) {
    has_partial_ = false;
    add_prefill(partial_, budget, work);
  }
  while (admits && budget > 0 && !waiting_.empty() &&
         decoding() + work.chunks < profile_.max_sequences) {
    const Slot slot = waiting_.front();
    if (!fits(slab_[slot]) || exceeds(budget, slab_[slot], work)) break;
    waiting_.pop();
    admit(slab_[slot]);
    if (slab_[slot].decodes_next() && !prefill_first_) {
      start_decoding(slot);
      resumed_.push_back(slot);
      --budget;
    } else {
      add_prefill(slot, budget, work);
    }
  }
}

// Whether the sequence's prefill, which cannot be split, has to wait for another iteration.
bool Engine::exceeds(std::int64_t budget, const Sequence& sequence, const PrefillWork& work) const {
  if (chunked_prefill_) return false;
  const std::int64_t tokens = tokens_to_compute(sequence);
  return tokens > budget && (tokens <= profile_.chunk_tokens || work.chunks > 0);
}

// A leap lasts until a sequence is complete, blocks run out or a submission ends it.
void Engine::begin_leap(std::int64_t longest) {
  leap_ = cost_.decode_run(decoding(), decode_kv_tokens_);
  leap_.decision = cost_.decision(decoding());
  leap_.period = decision_iterations_;
  leap_iterations_ = ceil_div(longest, decision_iterations_) * decision_iterations_;
  const std::int64_t available = available_blocks();
  if (decode_blocks(iteration_ + 1, leap_iterations_ - 1) <= available) return;
  // block_tokens iterations take one block per sequence; the rest is counted one by one.
  leap_iterations_ = 1 + available / decoding() * profile_.block_tokens;
  std::int64_t used = available / decoding() * decoding();
  while ((used += decode_blocks(iteration_ + leap_iterations_, 1)) <= available) ++leap_iterations_;
  leap_iterations_ -= leap_iterations_ % decision_iterations_;
}

// Whether the first waiting request ends the current leap. Room only shrinks within a leap, so it
// joins at the next boundary or not at all.
bool Engine::front_may_join() const {
  return state_ == State::ITERATING && chunks_.empty() && !has_partial_ &&
         decoding() < profile_.max_sequences &&
         (prefill_first_ || decoding() < profile_.chunk_tokens) && fits(slab_[waiting_.front()]);
}

// Ends the leap at the first decision that sees events at `now_sim_s`.
void Engine::cut_leap(double now_sim_s) {
  leap_iterations_ =
      ceil_div(iterations_begun(now_sim_s), decision_iterations_) * decision_iterations_;
  next_event_sim_s_ = to_sim_s(now_ + leap_.elapsed(leap_iterations_));
}

// Iterations of the leap that began before `now_sim_s`; at least one.
std::int64_t Engine::iterations_begun(double now_sim_s) const {
  const double wait = std::max(
      0.0, (now_sim_s - to_sim_s(now_)) * UNITS_PER_SECOND - static_cast<double>(leap_.once));
  const double half_growth = static_cast<double>(leap_.growth) / 2;
  const double linear = static_cast<double>(leap_.first) - half_growth +
                        static_cast<double>(leap_.decision) / static_cast<double>(leap_.period);
  const double root = std::sqrt(linear * linear + 4 * half_growth * wait);
  const double guess = 2 * wait / (linear + root);  // solves elapsed(i) = wait; exact below
  auto i = static_cast<std::int64_t>(std::clamp(guess, 1.0, static_cast<double>(leap_iterations_)));
  while (i > 1 && to_sim_s(now_ + leap_.elapsed(i - 1)) >= now_sim_s) --i;
  while (i < leap_iterations_ && to_sim_s(now_ + leap_.elapsed(i)) < now_sim_s) ++i;
  return i;
}

void Engine::end_iteration(std::deque<Completion>& out) {
  const Units duration = leap_.elapsed(leap_iterations_);
  now_ += duration;
  busy_ += duration;
  if (decodes()) {
    allocate(decode_blocks(iteration_ + 1, leap_iterations_ - 1));
    iteration_ += leap_iterations_;
    decode_kv_tokens_ += leap_iterations_ * decoding();
  }
  while (!decodings_.empty() && decodings_.front().last_iteration <= iteration_) {
    const Decoding decoding = decodings_.front();
    std::pop_heap(decodings_.begin(), decodings_.end());
    decodings_.pop_back();
    free_places_.push_back(iteration_ - decoding.last_iteration);
    stop_decoding(decoding);
    remove(decoding.slot, to_sim_s(now_), false, out);
  }
  std::sort(chunks_.begin(), chunks_.end(), [this](const Chunk& a, const Chunk& b) {
    return slab_[a.slot].rank.id < slab_[b.slot].rank.id;
  });
  for (const Chunk& chunk : chunks_) {
    Sequence& sequence = slab_[chunk.slot];
    sequence.computed_tokens += chunk.tokens;
    if (sequence.computed_tokens < sequence.prefill_tokens()) {
      has_partial_ = true;
      partial_ = chunk.slot;
      continue;
    }
    if (sequence.first_token_sim_s == NEVER) sequence.first_token_sim_s = to_sim_s(now_);
    share_blocks(sequence);
    ++sequence.generated_tokens;
    if (sequence.generated_tokens == sequence.output_tokens) {
      remove(chunk.slot, to_sim_s(now_), false, out);
    } else {
      start_decoding(chunk.slot);
    }
  }
  chunks_.clear();
  if (surplus_) fill_places();
  free_places_.clear();
  if (!aborting_.empty()) remove_aborted(out);
  reach_boundary();
}

}  // namespace metropolis::detail
