// The controller's micro-benchmark without Python: bench_controller AGENTS [STEPS]
#include <cstdio>
#include <cstdlib>

#include "metropolis/controller_bench.hpp"

int main(int argc, char** argv) {
  metropolis::ControllerBenchOptions options;
  if (argc > 1) options.agents = std::atoi(argv[1]);
  if (argc > 2) options.steps = std::atoi(argv[2]);
  const auto result = metropolis::bench_controller({5, 5}, metropolis::Chebyshev{}, options);
  std::printf(
      "%d agents: %.3f M agent-steps per CPU-second, p50 %.2f us, p99 %.2f us, max %.0f us, "
      "%.1f bytes per agent, skew %d\n",
      options.agents, 1e-6 * static_cast<double>(result.agent_steps) / result.cpu_s,
      result.commit_p50_us, result.commit_p99_us, result.commit_max_us, result.bytes_per_agent,
      result.skew_max);
}
