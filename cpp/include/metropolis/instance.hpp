// Virtual LLM instances: the interface the replay drives. Implemented as a discrete-event
// simulation.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace metropolis {

using RequestId = std::int64_t;

// What is refused beyond. No model, machine or context comes near, and up to here virtual time,
// kept in 128 bits, cannot overflow, whatever the profile.
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
// chunk*(kv + chunk/2), n prefills.
struct Profile {
  double w_ms = 0, g_ms = 0, h_ms = 0, b_ms = 0, k_ms = 0, q_ms = 0, c_ms = 0;
  double k_mixed_ms = 0;  // replaces k in iterations that also prefill; 0: k holds there too
  bool c_once = false;    // c is charged once per iteration that prefills, not per prefill
  std::int64_t kv_capacity_tokens = 0;
  std::int32_t block_tokens = 16;
  std::int32_t chunk_tokens = 2048;  // new tokens per iteration (chunked prefill)
  std::int32_t max_sequences = 128;
  std::int64_t kv_bytes_per_token = 0;  // these three: for preemption by swap
  double pcie_gb_per_s = 0;             // between GPU and host, all links of the instance together
  double host_gb = 0;                   // host memory for swapped KV blocks
};

// The first tokens of a text; texts of one id are the same as far as both go.
struct Segment {
  std::int64_t id;
  std::int32_t tokens;
};

struct Request {
  std::int32_t prompt_tokens = 0;
  std::int32_t output_tokens = 0;
  std::int64_t priority = 0;  // smaller runs first; ties by arrival, then by id
  // What the sequence, its prompt and then its answer, begins with. Requests share their tokens up
  // to where their segments part; tokens behind the segments are nobody else's.
  std::vector<Segment> prefix = {};
};

// A request that has left: with all its tokens, or aborted with those it had.
struct Completion {
  RequestId id;
  std::int32_t instance;
  std::int32_t output_tokens;
  double first_token_sim_s;  // infinity when it has none
  double last_token_sim_s;   // when it left
  bool aborted;
};

struct Progress {
  RequestId id;
  std::int32_t output_tokens;  // so far
};

// An instance at the time its pool has reached.
struct InstanceStatus {
  std::int64_t kv_used_blocks;    // held by running sequences
  std::int64_t kv_cached_blocks;  // held by nobody, kept for requests that begin with them
  std::int64_t kv_capacity_blocks;
  std::int64_t kv_host_blocks;  // swapped out
  std::int64_t running;
  std::int64_t waiting;
  std::int64_t preemptions;        // so far
  std::int64_t swapped_blocks;     // so far, out and in
  std::int64_t prefix_hit_tokens;  // of prompts and recomputed answers, found in the cache so far
  std::int64_t sequence_tokens;    // prompts and answers so far of all here that is not aborted
};

// What becomes of the KV blocks of a preempted sequence: dropped and computed again, or copied to
// host memory and back while there is room in it.
enum class Preemption { kRecompute, kSwap };

struct InstancePoolOptions {
  std::int32_t instances = 1;
  bool prefix_reuse = false;
  Preemption preemption = Preemption::kRecompute;
  // Multi-step scheduling: the engine admits, preempts and lets go every so many iterations.
  std::int32_t decision_iterations = 1;
};

// Data-parallel replicas behind a least-loaded dispatcher. Time never goes backwards.
class InstancePool {
 public:
  InstancePool(const Profile& profile, const InstancePoolOptions& options);
  ~InstancePool();
  InstancePool(InstancePool&&) noexcept;

  // Throws std::invalid_argument for a request that can never fit or has no output token, and for
  // a time before the pool's or beyond limits::SIM_S_MAX. Ids of outstanding requests are the
  // caller's to keep apart: of two that are equal, the first to be found is aborted.
  void submit(RequestId id, const Request& request, double now_sim_s);

  // As an engine's abort: what waits leaves at once; what runs leaves with its tokens at the end of
  // the iteration under way, complete if that brings its last one. advance() reports either.
  // With preemption by swap, `keep` has its KV blocks copied to the host, where there is room, and
  // it goes on with them when its id is submitted again, with its tokens as part of its prompt.
  // Throws std::invalid_argument for a request that is not outstanding or has been aborted before.
  void abort(RequestId id, double now_sim_s, bool keep = false);

  // A time at or before the next completion at which something may become visible;
  // infinity when nothing is outstanding. advance(next_event_sim_s()) always makes progress.
  double next_event_sim_s() const;

  // Lets time pass up to and including `until_sim_s`; appends the completions in order of
  // (last_token_sim_s, id). Throws std::invalid_argument when that leads beyond limits::SIM_S_MAX.
  void advance(double until_sim_s, std::vector<Completion>& out);

  std::int64_t outstanding() const;

  // The next ones throw std::invalid_argument when there is no such instance.
  double busy_sim_s(std::int32_t instance) const;

  // The sequences that run, and how far they are at the time the pool has reached.
  std::vector<Progress> progress(std::int32_t instance) const;
  InstanceStatus status(std::int32_t instance) const;

  std::int64_t preemptions() const;

  // What an iteration takes in which `sequences` decode, reading `kv_tokens`, and
  // `prefill_tokens` of one prompt are computed, its first.
  // Throws std::invalid_argument for negative counts, more sequences or prefill tokens than
  // limits::REQUEST_TOKENS_MAX, and more KV tokens than limits::KV_TOKENS_MAX.
  static double iteration_sim_s(const Profile& profile, std::int64_t sequences,
                                std::int64_t kv_tokens, std::int64_t prefill_tokens = 0);

  // Time one request takes on an otherwise idle instance: the lower bound used by critical paths.
  // Throws as submit does, except that KV capacity does not matter.
  static double isolated_sim_s(const Profile& profile, const Request& request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace metropolis
