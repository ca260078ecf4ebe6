// What agent-steps of a trace read, by value: the results of earlier agent-steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "metropolis/replay.hpp"
#include "metropolis/speculation.hpp"

namespace metropolis {

// Each agent-step that others depend on writes an entity of its own.
class ValueReads {
 public:
  // The trace is borrowed. Throws std::invalid_argument if there are too many such agent-steps.
  explicit ValueReads(const TraceView& trace);

  // The questions of an agent-step.
  std::vector<Question> questions(Step step, AgentId agent) const;
  // The entity that an agent-step writes.
  std::optional<EntityId> written(Step step, AgentId agent) const;

 private:
  TraceView trace_;
  std::vector<std::size_t> rows_;  // of the writing agent-steps, ascending
};

}  // namespace metropolis
