// Factories of controllers. Each throws std::invalid_argument with one sentence on bad input.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "metropolis/controller.hpp"
#include "metropolis/metric.hpp"
#include "metropolis/rule.hpp"
#include "metropolis/types.hpp"

namespace metropolis {

// The controller of `rule`: agent i starts at positions[i] before steps[i] (empty: step 0) and
// stops before `target_step`. Without `check_moves`, agents may jump further than `max_velocity`.
std::unique_ptr<Controller> make_controller(const Rule& rule, const Metric& metric,
                                            double max_velocity,
                                            std::span<const Position> positions,
                                            std::span<const Step> steps, Step target_step,
                                            bool check_moves = true);

// The controller of explicit dependencies. With i = step * agents + agent, the agent's partners at
// that step are partners[offsets[i], offsets[i + 1]). An agent may run a step once each of its
// partners at that step and the previous one has committed every earlier step: agents that meet are
// synchronised before and after. Every cluster is a single agent; positions are ignored.
std::unique_ptr<Controller> make_graph_controller(AgentId agents, Step steps,
                                                  std::span<const std::int64_t> offsets,
                                                  std::span<const AgentId> partners);

// The same for dependencies by value: an agent may run a step s once each agent w = writers[j] with
// offsets[i] <= j < offsets[i + 1] has committed the step s - ago[j].
std::unique_ptr<Controller> make_value_controller(AgentId agents, Step steps,
                                                  std::span<const std::int64_t> offsets,
                                                  std::span<const AgentId> writers,
                                                  std::span<const Step> ago);

// Used by make_controller for an infinite radius: all agents form one cluster, from `step` on.
std::unique_ptr<Controller> make_barrier_controller(const Metric& metric, double max_velocity,
                                                    std::span<const Position> positions, Step step,
                                                    Step target_step, bool check_moves);

}  // namespace metropolis
