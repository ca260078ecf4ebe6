#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "metropolis/workload.hpp"

namespace metropolis {
namespace {

void check_length(std::size_t length, std::size_t expected, bool optional, const char* column) {
  if (length == expected || (optional && length == 0)) return;
  throw std::invalid_argument("column " + std::string(column) + " has " + std::to_string(length) +
                              " rows, arrival_sim_s has " + std::to_string(expected));
}

template <typename T>
T value_or(std::span<const T> column, std::size_t row, T fallback) {
  return column.empty() ? fallback : column[row];
}

}  // namespace

WorkloadResult run_workload(const Profile& profile, const InstancePoolOptions& options,
                            const Workload& workload, std::int64_t concurrency) {
  const std::size_t n = workload.arrival_sim_s.size();
  check_length(workload.prompt_tokens.size(), n, false, "prompt_tokens");
  check_length(workload.output_tokens.size(), n, false, "output_tokens");
  check_length(workload.priority.size(), n, true, "priority");
  check_length(workload.prefix_id.size(), n, true, "prefix_id");
  check_length(workload.prefix_tokens.size(), n, true, "prefix_tokens");

  if (concurrency < 0) {
    throw std::invalid_argument("concurrency is " + std::to_string(concurrency) +
                                ", but must be at least 0");
  }

  InstancePool pool(profile, options);
  WorkloadResult result{std::vector<double>(n),
                        std::vector<double>(n),
                        std::vector<double>(n),
                        std::vector<std::int32_t>(n),
                        0,
                        0};
  std::vector<Completion> completions;
  Request request;
  double now_sim_s = 0;
  const auto collect = [&](double until_sim_s) {
    completions.clear();
    pool.advance(until_sim_s, completions);
    for (const Completion& c : completions) {
      const auto row = static_cast<std::size_t>(c.id);
      result.first_token_sim_s[row] = c.first_token_sim_s;
      result.last_token_sim_s[row] = c.last_token_sim_s;
      result.instance[row] = c.instance;
    }
  };
  for (std::size_t row = 0; row < n; ++row) {
    if (row > 0 && !(workload.arrival_sim_s[row] >= workload.arrival_sim_s[row - 1])) {
      throw std::invalid_argument("arrival_sim_s of row " + std::to_string(row) +
                                  " is before that of the row above; arrivals must ascend");
    }
    now_sim_s =
        row == 0 ? workload.arrival_sim_s[0] : std::max(now_sim_s, workload.arrival_sim_s[row]);
    if (concurrency > 0) {
      collect(now_sim_s);
      while (pool.outstanding() >= concurrency) {
        now_sim_s = std::max(now_sim_s, pool.next_event_sim_s());
        collect(now_sim_s);
      }
    }
    request.prompt_tokens = workload.prompt_tokens[row];
    request.output_tokens = workload.output_tokens[row];
    request.priority = value_or<std::int64_t>(workload.priority, row, 0);
    request.prefix.clear();
    const std::int64_t prefix_id = value_or<std::int64_t>(workload.prefix_id, row, -1);
    const std::int32_t prefix_tokens = value_or<std::int32_t>(workload.prefix_tokens, row, 0);
    if (prefix_id >= 0 && prefix_tokens != 0) request.prefix.push_back({prefix_id, prefix_tokens});
    pool.submit(static_cast<RequestId>(row), request, now_sim_s);
    result.submitted_sim_s[row] = now_sim_s;
  }
  collect(std::numeric_limits<double>::infinity());
  for (std::int32_t i = 0; i < options.instances; ++i) result.busy_sim_s += pool.busy_sim_s(i);
  result.preemptions = pool.preemptions();
  return result;
}

}  // namespace metropolis
