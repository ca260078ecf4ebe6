// Benchmarks a speculation with its controller: walkers that run ahead of each other.
#pragma once

#include "metropolis/controller_bench.hpp"

namespace metropolis {

struct SpeculationBenchResult {
  std::int64_t agent_steps;
  double cpu_s;                      // in the calls of the speculation, its controller's included
  double executions_per_agent_step;  // proceeds, those of wrong executions included
  double bytes_per_agent;            // heap per agent in the middle of the run; NaN if unknown
  Step skew_max;                     // maximum of a step that runs minus the floor at that time
};

// Every agent walks to and fro on a line of its own, and reads all agents within its perception
// radius of 4 tiles. It runs at most 4 steps ahead of the controller. Arguments and errors are
// those of bench_controller, except that options.steps is at most 10,000.
SpeculationBenchResult bench_speculation(const ControllerBenchOptions& options);

}  // namespace metropolis
