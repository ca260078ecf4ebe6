// Simulated LLM instances: the interface that replays drive. Implemented as a discrete-event
// simulation.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace metropolis {

using RequestId = std::int64_t;

// Upper bounds of valid input, far beyond any model, machine or context. Within them virtual time,
// kept in 128 bits, cannot overflow with any profile.
namespace limits {
inline constexpr std::int32_t REQUEST_TOKENS_MAX = 1 << 24;  // prompt and output together
inline constexpr std::int64_t KV_TOKENS_MAX = std::int64_t{1} << 34;
inline constexpr std::int32_t DECISION_ITERATIONS_MAX = 1 << 20;
inline constexpr std::int32_t INSTANCES_MAX = 1 << 16;
inline constexpr std::int64_t BLOCK_PHASES_MAX = 1 << 24;  // instances * block_tokens
inline constexpr double SIM_S_MAX = 1e12;                  // either side of 0
}  // namespace limits

// Cost of one iteration and capacity of one instance. See metropolis/sim/profiles for sources.
// Milliseconds per iteration: t = max(w, g*T + h) + b*B + k*K + q*Q + c*n, with T new tokens,
// B decoding sequences, K KV tokens read by decodes, Q = sum over prefill chunks of
// chunk*(kv + chunk/2), n prefills. An iteration that follows a decision (see
// InstancePoolOptions::decision_iterations) takes d + e*S longer, with S sequences in it.
struct Profile {
  double w_ms = 0, g_ms = 0, h_ms = 0, b_ms = 0, k_ms = 0, q_ms = 0, c_ms = 0;
  double k_mixed_ms = 0;  // replaces k in iterations that also prefill; 0: use k
  bool c_once = false;    // c is charged once per iteration that prefills, not per prefill
  double d_ms = 0, e_ms = 0;
  std::int64_t kv_capacity_tokens = 0;
  std::int32_t block_tokens = 16;
  std::int32_t chunk_tokens = 2048;  // new tokens per iteration
  std::int32_t max_sequences = 128;
  std::int64_t kv_bytes_per_token = 0;  // this and the next two: for preemption by swap
  double pcie_gb_per_s = 0;             // between GPU and host, summed over the instance's links
  double host_gb = 0;                   // host memory for swapped KV blocks
};

// The first tokens of a text. Segments of the same text are equal up to the end of the shorter one.
struct Segment {
  std::int64_t id;  // of the text
  std::int32_t tokens;
};

struct Request {
  std::int32_t prompt_tokens = 0;
  std::int32_t output_tokens = 0;
  std::int64_t priority = 0;  // smaller runs first; ties by arrival, then by id
  // The known beginning of the sequence, which is the prompt followed by the answer. Requests share
  // tokens up to the point where their segments differ; tokens after the segments are unique.
  std::vector<Segment> prefix = {};
  // The leading tokens that start from the cache of another instance or model, and the share of
  // their prefill that is left, from 0 (they need none) to 1; it is rounded to detail::SHARE_BITS.
  // Tokens that the instance itself has cached cost nothing, as without reuse. A preemption ends
  // the reuse, since the other cache may have been evicted.
  std::int32_t reused_tokens = 0;
  double reused_share = 0;
};

// A request that left: completed with all its tokens, or aborted with those it had.
struct Completion {
  RequestId id;
  std::int32_t instance;
  std::int32_t output_tokens;
  double first_token_sim_s;  // infinity without tokens
  double last_token_sim_s;   // when it left
  double preempted_sim_s;    // waiting after preemptions for lack of memory, since its first token
  bool aborted;
};

using Priorities = std::unordered_map<RequestId, std::int64_t>;

struct Progress {
  RequestId id;
  std::int32_t output_tokens;  // so far
};

// State of an instance at its pool's current time.
struct InstanceStatus {
  std::int64_t kv_used_blocks;    // held by running sequences
  std::int64_t kv_cached_blocks;  // held by no sequence, kept for prefix reuse
  std::int64_t kv_capacity_blocks;
  std::int64_t kv_host_blocks;  // swapped out
  std::int64_t running;
  std::int64_t waiting;
  std::int64_t preemptions;        // so far
  std::int64_t swapped_blocks;     // so far, out and in
  std::int64_t prefix_hit_tokens;  // found in the cache so far, recomputed answers included
  std::int64_t reused_tokens;      // so far, cheaper by the cache of another instance or model
  std::int64_t sequence_tokens;    // prompts and answers so far of all requests not aborted
};

// Treatment of a preempted sequence's KV blocks: dropped and recomputed, or copied to host memory
// and back if they fit there. SWAP copies those in the prefix cache when they are evicted, SWAP_ALL
// all of them, evicted or not (vLLM 0.6).
enum class Preemption { RECOMPUTE, SWAP, SWAP_ALL };

// Iterations with prefills. MIXED: decoding sequences go first, prefills get the rest (vLLM v1).
// PREFILL_FIRST: prefills have an iteration of their own, and decoding waits until none is left
// that can begin (vLLM v0 without chunked prefill; SGLang).
enum class Schedule { MIXED, PREFILL_FIRST };

struct InstancePoolOptions {
  std::int32_t instances = 1;
  bool prefix_reuse = false;
  Preemption preemption = Preemption::RECOMPUTE;
  // Multi-step scheduling: iterations between decisions to admit, preempt or finish requests.
  std::int32_t decision_iterations = 1;
  Schedule schedule = Schedule::MIXED;
  // Whether a prefill may be split over iterations. Otherwise one that is longer than
  // Profile::chunk_tokens is computed as the only prefill of an iteration.
  bool chunked_prefill = true;
  // Share of the KV blocks that admission leaves free unless the instance is empty, at least 0 and
  // below 1. vLLM v0: 0.01.
  double watermark = 0;
  // Whether requests that the host keeps (abort()) decode in the places of those that complete
  // between two decisions, as long as their KV is on the GPU, too (Agentix §4.2.2).
  bool surplus = false;
};

// Data-parallel replicas behind a least-loaded dispatcher. Time never decreases.
class InstancePool {
 public:
  InstancePool(const Profile& profile, const InstancePoolOptions& options);
  ~InstancePool();
  InstancePool(InstancePool&&) noexcept;

  // Throws std::invalid_argument for a request that can never fit, has no output token, or reuses
  // its whole prompt, and for a time before the pool's or beyond limits::SIM_S_MAX. The caller
  // keeps the ids of outstanding requests distinct: abort() takes the first match.
  void submit(RequestId id, const Request& request, double now_sim_s);

  // Aborts like an engine: a waiting request leaves at once; a running one leaves with its tokens
  // at the end of the current iteration, complete if that yields its last token. advance() reports
  // both. With preemption by swap, `keep` copies its KV blocks to the host if they fit; the request
  // resumes with them when its id is submitted again with its tokens as part of its prompt. Throws
  // std::invalid_argument for a request that is not outstanding or is already aborted, which
  // changes nothing, and for one that ends until then.
  void abort(RequestId id, double now_sim_s, bool keep = false);

  // Frees the KV blocks that the host keeps, or is about to keep, of an aborted request that will
  // not be submitted again.
  // Throws std::invalid_argument for a time like submit().
  void discard(RequestId id, double now_sim_s);

  // Changes the Request::priority of waiting and running requests. Ids that are not outstanding are
  // ignored. Throws std::invalid_argument for a time like submit().
  void reprioritize(const Priorities& priorities, double now_sim_s);

  // Whether the request is outstanding and no instance has begun it; false if it is unknown.
  bool waits(RequestId id) const;

  // A time at or before the next completion at which something may become visible;
  // infinity when nothing is outstanding. advance(next_event_sim_s()) always makes progress.
  double next_event_sim_s() const;

  // Advances time up to and including `until_sim_s`; appends the completions in order of
  // (last_token_sim_s, id). Throws std::invalid_argument if that exceeds limits::SIM_S_MAX.
  void advance(double until_sim_s, std::vector<Completion>& out);

  std::int64_t outstanding() const;

  // Time spent in iterations so far. This and the next three throw std::invalid_argument on an
  // unknown instance.
  double busy_sim_s(std::int32_t instance) const;

  // The running sequences and their progress at the pool's current time.
  std::vector<Progress> progress(std::int32_t instance) const;
  // The waiting sequences that have tokens of their answers, because they were preempted.
  std::vector<Progress> preempted(std::int32_t instance) const;
  InstanceStatus status(std::int32_t instance) const;

  // The leading tokens of `prefix` that the instance's prefix cache holds at the pool's current
  // time, in whole blocks. Throws std::invalid_argument on an unknown instance and on segments
  // without tokens or of more than limits::REQUEST_TOKENS_MAX together.
  std::int64_t cached_tokens(std::int32_t instance, const std::vector<Segment>& prefix) const;

  std::int64_t preemptions() const;

  // Throws std::invalid_argument for an invalid profile, and for a request that an idle instance
  // with decision_iterations = 1 cannot serve.
  static void check_fits(const Profile& profile, const Request& request);

  // Duration of an iteration in which `sequences` decode, reading `kv_tokens`, and the first
  // `prefill_tokens` of one prompt are computed; without a decision if there are none.
  // Throws std::invalid_argument for negative counts, more sequences or prefill tokens than
  // limits::REQUEST_TOKENS_MAX, and more KV tokens than limits::KV_TOKENS_MAX.
  static double iteration_sim_s(const Profile& profile, std::int64_t sequences,
                                std::int64_t kv_tokens, std::int64_t prefill_tokens = 0);

  // Duration of one request, with its reuse, on an otherwise idle instance, without decisions while
  // it decodes: the lower bound used by critical paths.
  // Throws like submit, but ignores KV capacity.
  static double isolated_sim_s(const Profile& profile, const Request& request,
                               bool chunked_prefill = true);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace metropolis
