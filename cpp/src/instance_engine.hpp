// One LLM engine replica with continuous batching, as a discrete-event simulation.
//
// Rules of an iteration; metropolis/sim/reference.py executes them one iteration at a time:
//  1. It begins at a boundary: the end of the previous one, or a submission to an idle engine. It
//     sees the requests submitted up to and including that instant.
//  2. Every decoding sequence gets one token. If their new KV blocks do not fit, the running
//     sequence of the largest rank is preempted: its blocks are freed and it waits again. Later it
//     prefills its prompt and its tokens; or, with preemption by swap, it decodes on with the
//     blocks copied to the host, if they fitted there. Copying delays the iteration. Blocks in the
//     prefix cache are copied when they are evicted, which delays the iteration that misses them;
//     with SWAP_ALL they are copied like the others, out and in, also if they are still cached.
//  3. The rest of `chunk_tokens` goes to the partial prefill, then to waiting sequences by rank, as
//     long as there is room for a sequence and for all the blocks of its prefill; the first that
//     does not fit ends admission. An iteration that preempts admits no sequence. Unless the engine
//     is empty, admission leaves the watermark's blocks free. Without chunked prefill, a prefill
//     also has to fit into the rest of `chunk_tokens`; one longer than all of it has to be the
//     first.
//  4. At its end sequences leave in order of id, first those that decoded; a completed prefill
//     yields one token. Sequences aborted while running leave next; KV that the host keeps is
//     copied as in rule 2, and they resume with it when they are submitted again.
//  5. Multi-step scheduling: an iteration that does not prefill is the first of N =
//     `decision_iterations`. The others only decode; rules 2 to 4 apply at their end, and rules 2
//     and 3 reserve the blocks needed until then. Tokens decoded beyond the last one are discarded;
//     with `surplus`, a kept sequence whose whole blocks are all in the cache takes the place, and
//     decodes until the decision, except for its last token: it has these tokens when it is
//     submitted again. The first by rank takes the place that was free first, at its cost.
//  6. Prefill first: rule 3 precedes rule 2 and has all of `chunk_tokens`. If it yields a prefill,
//     the iteration has only prefills; otherwise it only decodes. A sequence that resumes computes
//     its last token as a prefill.
// A *leap* processes iterations that only decode, with an unchanged batch, as one event.
// Known tokens (Request::prefix) are shared in whole blocks. They enter the cache when a prefill
// ends and when a sequence leaves or is preempted; blocks that another sequence has added meanwhile
// are held once. A prefill skips the blocks it finds, but computes at least one token. Blocks that
// no sequence holds are evicted on demand, least recently used first.
// Reused tokens (Request::reused_tokens) after those found in the cache: with a share of 0 they are
// computed on admission; with a larger one they are prefilled like others, at that share of g and
// q. A preemption ends the reuse. Their blocks enter the cache like computed ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "instance_cost.hpp"
#include "instance_prefix.hpp"
#include "instance_queue.hpp"

namespace metropolis::detail {

inline constexpr double NEVER = std::numeric_limits<double>::infinity();

class Engine {
 public:
  Engine(const Profile& profile, const CostModel& cost, const InstancePoolOptions& options,
         std::int32_t index);

  // `now_sim_s` must not be before any event processed by step().
  void enqueue(RequestId id, const Request& request, double now_sim_s);

  // Time of the next event: just after a boundary, so that submissions at its instant are seen;
  // exactly at the end of a leap over iterations; infinity when idle.
  double next_event_sim_s() const { return next_event_sim_s_; }

  // Whether the request waits or runs here and is not yet aborted.
  bool may_abort(RequestId id) const { return waits(id) || (runs(id) && !is_aborting(id)); }
  // Aborts the request if may_abort(), which it returns. Appends a completion if the request leaves
  // at once.
  bool abort(RequestId id, bool keep, double now_sim_s, std::deque<Completion>& out);

  // Frees the KV blocks that the host keeps, or is about to keep, of an aborted request.
  void discard(RequestId id);

  void reprioritize(const Priorities& priorities, double now_sim_s);

  bool waits(RequestId id) const { return waiting_.contains(id); }

  // Whether the host keeps KV blocks of the request from an earlier stay.
  bool keeps(RequestId id) const { return kept_.contains(id); }

  // Processes the next event; appends completions in order of id.
  void step(std::deque<Completion>& out);

  double busy_sim_s(double now_sim_s) const;
  std::int64_t preemptions() const { return preemptions_; }
  std::vector<Progress> progress(double now_sim_s) const;
  std::vector<Progress> preempted() const;
  InstanceStatus status(double now_sim_s) const;
  std::int64_t cached_tokens(const std::vector<Segment>& prefix, double now_sim_s) const;

 private:
  struct Swapped {
    std::int32_t tokens = 0;         // tokens whose KV is in host memory or in the prefix cache
    std::int32_t copied_blocks = 0;  // blocks of these tokens that were copied to the host
    bool has_token = false;          // see Sequence
  };
  struct Sequence {
    Rank rank;
    double first_token_sim_s;
    std::unique_ptr<const KnownPrefix> known;  // null: it shares nothing
    std::int32_t prompt_tokens;
    std::int32_t output_tokens;
    std::int32_t generated_tokens;   // kept up to date except while decoding
    PrefixCache::Block last_shared;  // the last block it holds in the prefix cache
    std::int64_t computed_tokens;    // with KV in the cache; kept up to date except while decoding
    Swapped swapped;
    Units preempted_at;       // the boundary of its preemption; RUNS if it does not wait after one
    Units preempted;          // time waited after earlier preemptions
    std::int64_t own_blocks;  // held elsewhere, without those allocated while decoding
    std::int32_t shared_blocks;  // held in the prefix cache
    std::int32_t phase;          // it needs a block when (phase + iteration) % block_tokens == 0
    std::int32_t reused_tokens;  // 0 once preempted
    std::int32_t reused_share;
    bool had_token;  // generated before an abort that kept its KV

    // Whether a token of its answer is known.
    bool has_token() const { return had_token || generated_tokens > 0; }
    // Whether all but its last token is in the KV cache.
    bool decodes_next() const { return has_token() && computed_tokens == prefill_tokens() - 1; }
    std::int64_t prefill_tokens() const { return std::int64_t{prompt_tokens} + generated_tokens; }
  };
  struct Decoding {
    std::int64_t last_iteration;  // it is complete after this many iterations
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
  struct Kept {
    Rank rank;
    Swapped swapped;
    std::unique_ptr<const KnownPrefix> known;
    std::int32_t left_tokens;       // tokens of its answer that are still to be generated
    std::int32_t ahead_tokens = 0;  // the part of left_tokens decoded in the places of others
  };
  static constexpr Units RUNS = -1;
  enum class State { IDLE, AT_BOUNDARY, ITERATING };

  void begin_iteration();
  void add_prefills(std::int64_t budget, bool admits, PrefillWork& work);
  void end_iteration(std::deque<Completion>& out);
  void begin_leap(std::int64_t longest);
  bool front_may_join() const;
  bool exceeds(std::int64_t budget, const Sequence& sequence, const PrefillWork& work) const;
  // Whether decoding sequences get a token in the current iteration.
  bool decodes() const { return chunks_.empty() || !prefill_first_; }
  void cut_leap(double now_sim_s);
  std::int64_t iterations_begun(double now_sim_s) const;
  std::int64_t decoded_in_leap(double now_sim_s) const;
  std::int64_t allocated_in_leap(double now_sim_s) const;
  std::int64_t sequence_tokens(double now_sim_s) const;

  bool preempt_until_decodes_fit();
  void preempt_worst();
  void swap_out(Sequence& sequence);
  void swap_in(Sequence& sequence);
  void add_prefill(Slot slot, std::int64_t& budget, PrefillWork& work);
  bool fits(const Sequence& sequence) const;
  std::int64_t tokens_to_compute(const Sequence& sequence) const;
  void admit(Sequence& sequence);
  void reuse(Sequence& sequence);
  PrefixBlocks blocks_within(const KnownPrefix* known, std::int64_t tokens) const;

  void start_decoding(Slot slot);
  void stop_decoding(const Decoding& decoding);
  void share_blocks(Sequence& sequence);
  bool runs(RequestId id) const;
  bool is_aborting(RequestId id) const {
    return std::any_of(aborting_.begin(), aborting_.end(),
                       [id](const Aborting& one) { return one.id == id; });
  }
  void remove_aborted(std::deque<Completion>& out);
  void remove(Slot slot, double now_sim_s, bool aborted, std::deque<Completion>& out);
  void keep_swapped(Sequence& sequence);
  void restore_kept(Sequence& sequence);
  void fill_places();
  bool may_fill(const Kept& kept) const;
  void release_blocks(Sequence& sequence);

  std::int64_t blocks_of(std::int64_t tokens) const {
    return ceil_div(tokens, profile_.block_tokens);
  }
  std::int64_t lookahead(const Sequence& sequence) const;
  std::int64_t decode_blocks(std::int64_t iteration, std::int64_t count) const;
  void allocate(std::int64_t blocks);
  std::int64_t available_blocks() const { return free_blocks_ + prefixes_.idle_blocks(); }
  std::int64_t decoding() const { return static_cast<std::int64_t>(decodings_.size()); }
  std::int64_t decoded_tokens(const Decoding& d) const {  // including those to be discarded
    return slab_[d.slot].output_tokens - (d.last_iteration - iteration_);
  }
  double to_sim_s(Units offset) const { return origin_sim_s_ + to_seconds(offset); }
  void reach_boundary();

  const Profile profile_;
  const CostModel cost_;
  const bool prefix_reuse_;
  const std::int64_t decision_iterations_;
  const bool prefill_first_;
  const bool chunked_prefill_;
  const bool surplus_;
  const bool swaps_all_;
  const std::int64_t watermark_blocks_;
  const std::int64_t host_blocks_;
  const std::int32_t index_;

  std::vector<Sequence> slab_;
  std::vector<Slot> free_slots_;
  WaitingQueue waiting_;
  std::vector<Decoding> decodings_;  // a heap
  std::vector<Chunk> chunks_;  // prefills of the current iteration; only the last can be partial
  std::vector<Slot> resumed_;  // those that the current iteration has admitted to decode
  bool has_partial_ = false;   // whether a prefill is incomplete between iterations
  Slot partial_ = 0;
  std::vector<Aborting> aborting_;            // run until the next boundary
  std::unordered_map<RequestId, Kept> kept_;  // of aborted requests
  std::vector<std::int64_t> free_places_;     // iterations since sequences were complete
  PrefixCache prefixes_;
  std::int64_t free_blocks_;
  std::int64_t reserved_blocks_ = 0;  // for decoding until the next decision (rule 5)
  std::int64_t host_used_blocks_ = 0;

  State state_ = State::IDLE;
  double next_event_sim_s_;
  double origin_sim_s_ = 0;  // start of the current busy period
  Units now_ = 0;            // the last boundary, relative to the origin
  Units busy_ = 0;
  std::int64_t iteration_ = 0;         // iterations completed
  std::int64_t decode_kv_tokens_ = 0;  // read by the next iteration
  std::vector<std::int64_t> phases_;   // decoding sequences by phase
  std::int64_t leap_iterations_ = 0;   // length of the current leap
  DecodeRun leap_{0, 0};               // its cost; a single mixed iteration has no growth
  std::int64_t preemptions_ = 0;
  std::int64_t swapped_blocks_ = 0;
  std::int64_t charged_blocks_ = 0;  // the part of swapped_blocks_ that iterations were charged for
  std::int64_t prefix_hit_tokens_ = 0;
  std::int64_t reused_tokens_ = 0;
};

}  // namespace metropolis::detail
