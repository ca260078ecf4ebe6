// One LLM engine replica with continuous batching, as a discrete-event simulation.
//
// Rules of an iteration, which metropolis/sim/reference.py spells out one iteration at a time:
//  1. It begins at a boundary: the end of the one before, or a submission to an idle engine. It
//  sees
//     the requests submitted up to and including that instant.
//  2. Every decoding sequence gets one token. If their new KV blocks do not fit, the running
//     sequence of the largest rank is preempted: its blocks are freed and it waits again, to
//     prefill its prompt and what it had generated; or, with preemption by swap, to go on with the
//     blocks that were copied to the host, where these had room. Copying delays the iteration.
//     Those that the prefix cache holds are copied when it drops them, which delays the iteration
//     in which they are missing.
//  3. The rest of `chunk_tokens` goes to the sequence whose prefill is under way, then to waiting
//     ones by rank while there is room for a sequence and for all the blocks of its prefill; the
//     first that does not fit ends this. Nobody is admitted in an iteration that preempts.
//  4. At its end sequences leave in order of id, first those that decoded; a completed prefill
//     yields one token. Then those leave that were aborted while they ran; what the host keeps of
//     them is copied there as in rule 2, and they go on with it when they are submitted again.
//  5. Multi-step scheduling: unless it prefills, an iteration is the first of
//     `decision_iterations`, N. The others only decode; 2 to 4 wait for their end, 2 and 3 see to
//     it that blocks suffice until then. What a sequence decodes beyond its last token is thrown
//     away.
// Known tokens (Request::prefix) are shared in whole blocks. They enter the cache when a prefill
// ends and when a sequence leaves or is preempted; what another sequence has put there in the
// meantime is held once. A prefill skips the blocks it finds, and computes at least one token.
// Blocks nobody holds are evicted when others are needed, least recently used first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "instance_cost.hpp"
#include "instance_prefix.hpp"
#include "instance_queue.hpp"

namespace metropolis::detail {

class Engine {
 public:
  Engine(const Profile& profile, const CostModel& cost, const InstancePoolOptions& options,
         std::int32_t index);

  // `now_sim_s` is not before anything step() has carried out.
  void enqueue(RequestId id, const Request& request, double now_sim_s);

  // When the next event is due: a boundary that still waits for submissions of its own instant is
  // due just after it, the end of a leap over iterations exactly then; infinity when idle.
  double next_event_sim_s() const { return next_event_sim_s_; }

  // Whether the request was here and not yet aborted. Appends to `out` what leaves at once.
  bool abort(RequestId id, bool keep, double now_sim_s, std::deque<Completion>& out);

  // Whether the host has KV blocks of it from an earlier stay.
  bool keeps(RequestId id) const { return kept_.contains(id); }

  // Carries out that event; appends completions in order of id.
  void step(std::deque<Completion>& out);

  double busy_sim_s(double now_sim_s) const;
  std::int64_t preemptions() const { return preemptions_; }
  std::vector<Progress> progress(double now_sim_s) const;
  InstanceStatus status(double now_sim_s) const;

 private:
  struct Swapped {
    std::int64_t tokens = 0;         // in host memory, or in the prefix cache
    std::int64_t copied_blocks = 0;  // of theirs, when they left
  };
  struct Sequence {
    Rank rank;
    double first_token_sim_s;
    std::unique_ptr<const KnownPrefix> known;  // none: nobody can share anything with it
    std::int32_t prompt_tokens;
    std::int32_t output_tokens;
    std::int32_t generated_tokens;   // kept up to date except while decoding
    PrefixCache::Block last_shared;  // of the blocks it holds in the prefix cache
    std::int64_t computed_tokens;    // in the KV cache; kept up to date except while decoding
    Swapped swapped;
    std::int64_t own_blocks;     // the others; not counting what it allocated while decoding
    std::int32_t shared_blocks;  // how many it holds in the prefix cache
    std::int32_t phase;          // it needs a block when (phase + iteration) % block_tokens == 0

    // Whether all but its last token is in the KV cache.
    bool decodes_next() const {
      return generated_tokens > 0 && computed_tokens == prefill_tokens() - 1;
    }
    std::int64_t prefill_tokens() const { return std::int64_t{prompt_tokens} + generated_tokens; }
  };
  struct Decoding {
    std::int64_t last_iteration;  // it has all its tokens when this many iterations have passed
    RequestId id;
    Slot slot;
    friend bool operator<(const Decoding& a, const Decoding& b) {  // min-heap
      return std::tie(b.last_iteration, b.id) < std::tie(a.last_iteration, a.id);
    }
  };
  struct Chunk {
    Slot slot;
    std::int32_t tokens;
  };
  struct Aborting {
    RequestId id;
    bool keep;
    friend bool operator<(const Aborting& a, const Aborting& b) { return a.id < b.id; }
  };
  enum class State { kIdle, kAtBoundary, kIterating };

  void begin();
  void end(std::deque<Completion>& out);
  void begin_leap(std::int64_t longest);
  bool front_may_join() const;
  void cut_leap(double now_sim_s);
  std::int64_t iterations_begun(double now_sim_s) const;
  std::int64_t decoded_in_leap(double now_sim_s) const;
  std::int64_t sequence_tokens(double now_sim_s) const;

  bool preempt_until_decodes_fit();
  void preempt_worst();
  void swap_out(Sequence& sequence);
  void swap_in(Sequence& sequence);
  void add_prefill(Slot slot, std::int64_t& budget, PrefillWork& work);
  bool fits(const Sequence& sequence) const;
  void admit(Sequence& sequence);
  PrefixBlocks blocks_within(const Sequence& sequence, std::int64_t tokens) const;

  void start_decoding(Slot slot);
  void stop_decoding(const Decoding& decoding);
  void share_blocks(Sequence& sequence);
  bool runs(RequestId id) const;
  bool is_aborting(RequestId id) const {
    return std::any_of(aborting_.begin(), aborting_.end(),
                       [id](const Aborting& one) { return one.id == id; });
  }
  void leave_aborted(std::deque<Completion>& out);
  void leave(Slot slot, double now_sim_s, bool aborted, std::deque<Completion>& out);
  void keep_swapped(Sequence& sequence);
  void take_up_kept(Sequence& sequence);
  void release_blocks(Sequence& sequence);

  std::int64_t blocks_of(std::int64_t tokens) const {
    return ceil_div(tokens, profile_.block_tokens);
  }
  std::int64_t lookahead(const Sequence& sequence) const;
  std::int64_t decode_blocks(std::int64_t iteration, std::int64_t count) const;
  void allocate(std::int64_t blocks);
  std::int64_t available_blocks() const { return free_blocks_ + prefixes_.idle_blocks(); }
  std::int64_t decoding() const { return static_cast<std::int64_t>(decodings_.size()); }
  std::int64_t decoded_tokens(const Decoding& d) const {  // with what will be thrown away
    return slab_[d.slot].output_tokens - (d.last_iteration - iteration_);
  }
  double to_sim_s(Units offset) const { return origin_sim_s_ + to_seconds(offset); }
  void reach_boundary();

  const Profile profile_;
  const CostModel cost_;
  const bool prefix_reuse_;
  const std::int64_t decision_iterations_;
  const std::int64_t host_blocks_;
  const std::int32_t index_;

  std::vector<Sequence> slab_;
  std::vector<Slot> free_slots_;
  WaitingQueue waiting_;
  std::vector<Decoding> decodings_;  // a heap
  std::vector<Chunk> chunks_;  // prefills of the iteration under way; only the last can be partial
  bool has_partial_ = false;   // whether a prefill is under way between iterations
  Slot partial_ = 0;
  std::vector<Aborting> aborting_;               // run until the next boundary
  std::unordered_map<RequestId, Swapped> kept_;  // of who has left
  PrefixCache prefixes_;
  std::int64_t free_blocks_;
  std::int64_t reserved_blocks_ = 0;  // for the decodes of rule 5
  std::int64_t host_used_blocks_ = 0;

  State state_ = State::kIdle;
  double next_event_sim_s_;
  double origin_sim_s_ = 0;  // when the engine was last idle
  Units now_ = 0;            // the last boundary, counted from the origin
  Units busy_ = 0;
  std::int64_t iteration_ = 0;         // iterations completed
  std::int64_t decode_kv_tokens_ = 0;  // read by the next iteration
  std::vector<std::int64_t> phases_;   // decoding sequences by phase
  std::int64_t leap_iterations_ = 0;   // length of the leap under way
  DecodeRun leap_{0, 0};               // its cost; a single mixed iteration has no growth
  std::int64_t preemptions_ = 0;
  std::int64_t swapped_blocks_ = 0;
  std::int64_t charged_blocks_ = 0;  // of these, what iterations have been delayed by
  std::int64_t prefix_hit_tokens_ = 0;
};

}  // namespace metropolis::detail
