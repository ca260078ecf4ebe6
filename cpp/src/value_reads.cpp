#include "value_reads.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "batch.hpp"

namespace metropolis {

ValueReads::ValueReads(const TraceView& trace) : trace_(trace) {
  for (Step step = 0; step < trace.steps; ++step) {
    for (AgentId agent = 0; agent < trace.agents; ++agent) {
      trace.for_each_dependency(step, agent, [&](AgentId writer, Step ago) {
        rows_.push_back(trace.row(step - ago, writer));
      });
    }
  }
  sort_unique(rows_);
  const std::size_t most = static_cast<std::size_t>(ENTITY_MAX - trace.agents);
  if (rows_.size() > most) {
    throw std::invalid_argument("replay: others depend on " + std::to_string(rows_.size()) +
                                " agent-steps; it may be at most " + std::to_string(most));
  }
}

std::vector<Question> ValueReads::questions(Step step, AgentId agent) const {
  std::vector<Question> questions;
  trace_.for_each_dependency(step, agent, [&](AgentId writer, Step ago) {
    questions.push_back({Question::Kind::ENTITY, *written(step - ago, writer), {}, 0});
  });
  return questions;
}

std::optional<EntityId> ValueReads::written(Step step, AgentId agent) const {
  const auto found = std::ranges::lower_bound(rows_, trace_.row(step, agent));
  if (found == rows_.end() || *found != trace_.row(step, agent)) return std::nullopt;
  return trace_.agents + static_cast<EntityId>(found - rows_.begin());
}

}  // namespace metropolis
