// Runs a list of requests on simulated LLM instances.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "metropolis/instance.hpp"

namespace metropolis {

// Columns of n requests; the last three may be empty (priority 0, no prefix). A prefix is one
// segment, as in traces; prefix_id -1 means none.
struct Workload {
  std::span<const double> arrival_sim_s;  // ascending
  std::span<const std::int32_t> prompt_tokens;
  std::span<const std::int32_t> output_tokens;
  std::span<const std::int64_t> priority;
  std::span<const std::int64_t> prefix_id;
  std::span<const std::int32_t> prefix_tokens;
};

struct WorkloadResult {
  std::vector<double> submitted_sim_s;
  std::vector<double> first_token_sim_s;
  std::vector<double> last_token_sim_s;
  std::vector<std::int32_t> instance;
  double busy_sim_s = 0;  // sum over instances
  std::int64_t preemptions = 0;
};

// With `concurrency` > 0 a request waits while that many are outstanding (a closed loop).
// Throws std::invalid_argument, with the row, on columns of unequal length, decreasing arrivals and
// requests that no instance can serve; and on a negative concurrency.
WorkloadResult run_workload(const Profile& profile, const InstancePoolOptions& options,
                            const Workload& workload, std::int64_t concurrency = 0);

}  // namespace metropolis
