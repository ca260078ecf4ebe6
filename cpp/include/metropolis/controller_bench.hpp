// Benchmarks a controller alone: walkers at a given density, with lognormal service times.
#pragma once

#include <cstdint>

#include "metropolis/metric.hpp"
#include "metropolis/rule.hpp"

namespace metropolis {

struct ControllerBenchOptions {
  AgentId agents = 25;
  Step steps = 200;
  double tiles_per_agent = 560;  // SmallVille: 25 agents on 140 x 100 tiles
  std::uint64_t seed = 1;
};

struct ControllerBenchResult {
  std::int64_t agent_steps;  // of all runs; small populations are run several times
  double cpu_s;              // in the controller's calls, without construction
  double construct_cpu_s;
  std::int64_t commits;
  double commit_p50_us, commit_p99_us, commit_max_us;
  double bytes_fixed;      // heap of a controller without agents
  double bytes_per_agent;  // heap per additional agent; NaN if malloc does not report it
  Step skew_max;           // maximum of a dispatched step minus the floor at that time
};

// Every agent walks one random tile per step on a square. A cluster takes the longest service time
// of its members, each drawn from a lognormal (mu 0, sigma 1); servers are unlimited. There may be
// at most one million steps. Throws as check_bench_options.
ControllerBenchResult bench_controller(const Rule& rule, const Metric& metric,
                                       const ControllerBenchOptions& options);

// Throws std::invalid_argument unless there are 1 to ten million agents and 1 to `steps_max` steps.
void check_bench_options(const ControllerBenchOptions& options, Step steps_max);

}  // namespace metropolis
