// Runs a list of requests on simulated LLM instances.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "metropolis/instance.hpp"

namespace metropolis {

// Columns of n requests; the last four may be empty (priority 0, no prefix, no parent). A prefix is
// one segment, as in traces; prefix_id -1 means none. A request with a parent, which is the row of
// an earlier request, arrives no earlier than the parent's last token; -1 means none.
struct Workload {
  std::span<const double> arrival_sim_s;  // ascending
  std::span<const std::int32_t> prompt_tokens;
  std::span<const std::int32_t> output_tokens;
  std::span<const std::int64_t> priority;
  std::span<const std::int64_t> prefix_id;
  std::span<const std::int32_t> prefix_tokens;
  std::span<const std::int64_t> parent;
};

struct WorkloadOptions {
  // If positive, a request waits while that many are outstanding (a closed loop); excludes parents.
  std::int64_t concurrency = 0;
  double until_sim_s = std::numeric_limits<double>::infinity();  // the simulation ends here
};

// Times after the end of the simulation are infinite.
struct WorkloadResult {
  std::vector<double> submitted_sim_s;
  std::vector<double> first_token_sim_s;
  std::vector<double> last_token_sim_s;
  std::vector<std::int32_t> instance;          // -1: not completed
  std::vector<std::int32_t> generated_tokens;  // by the end
  double busy_sim_s = 0;                       // sum over instances
  std::int64_t preemptions = 0;
};

// Throws std::invalid_argument, with the row, on columns of unequal length, decreasing arrivals,
// parents that are no earlier rows, and requests that no instance can serve; and on a negative
// concurrency, or one together with parents.
WorkloadResult run_workload(const Profile& profile, const InstancePoolOptions& options,
                            const Workload& workload, const WorkloadOptions& how = {});

}  // namespace metropolis
