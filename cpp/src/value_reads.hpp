// What agent-steps of a trace read, by value: the results of earlier agent-steps.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "metropolis/replay.hpp"
#include "metropolis/speculation.hpp"

namespace metropolis {

// Translates dependencies by value into questions about entities: each agent-step that others
// depend on writes one entity, which only it writes.
class ValueReads {
 public:
  // The trace is borrowed. Throws std::invalid_argument if there are too many such agent-steps.
  explicit ValueReads(const TraceView& trace);

  // The questions that an agent-step asks: one for each agent-step that it depends on.
  std::vector<Question> questions(Step step, AgentId agent) const;
  // The entity that an agent-step writes; nullopt if no other depends on it.
  std::optional<EntityId> written(Step step, AgentId agent) const;

 private:
  TraceView trace_;
  std::vector<std::size_t> rows_;  // the rows of the agent-steps that write, ascending
};

}  // namespace metropolis
