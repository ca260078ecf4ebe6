// Checks of the arguments of a speculation. They throw std::invalid_argument with a sentence.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "metropolis/speculation.hpp"

namespace metropolis {

std::string name_of(ExecutionId id);  // "the execution 7"

// The arguments of make_speculation.
void check_speculation(const Controller& controller, const Metric& metric,
                       const SpeculationOptions& options, std::span<const EntityId> bodies,
                       std::span<const Sighting> entities, std::span<const Digest> minds);

// What the execution `id` reports. An answer is in the order that Question::Kind says.
void check_reads(const Metric& metric, ExecutionId id, const Reads& reads);
void check_writes(const Metric& metric, ExecutionId id, std::vector<Write> writes);
void check_events(const Metric& metric, ExecutionId id, const std::vector<Sighting>& events);
void check_minds(ExecutionId id, std::span<const AgentId> members, const std::vector<Mind>& minds);
void check_forecasts(const Metric& metric, ExecutionId id, const std::vector<AgentId>& members,
                     const std::vector<Forecast>& forecasts);

}  // namespace metropolis
