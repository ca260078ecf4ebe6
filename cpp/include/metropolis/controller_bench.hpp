// Measures a controller alone: walkers at a given density with lognormal service times.
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
  std::int64_t agent_steps;  // of all runs; small populations run several times
  double cpu_s;              // spent inside the controller's calls, construction not included
  double construct_cpu_s;
  std::int64_t commits;
  double commit_p50_us, commit_p99_us, commit_max_us;
  double bytes_fixed;      // what a controller of no agents holds on the heap …
  double bytes_per_agent;  // … and every agent adds to it; NaN where malloc cannot tell
  Step skew_max;           // largest step dispatched, less the floor at that time
};

// Every agent walks one tile a step at random on a square. A cluster takes as long as the slowest
// of its members' service times, drawn from a lognormal (mu 0, sigma 1); servers are unlimited.
// Throws std::invalid_argument without agents or steps, and with more than ten or one million.
ControllerBenchResult bench_controller(const Rule& rule, const Metric& metric,
                                       const ControllerBenchOptions& options);

}  // namespace metropolis
