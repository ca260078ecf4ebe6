#include "metropolis/speculation.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "indexed_speculation.hpp"

namespace metropolis {

namespace {

std::string name_of(ExecutionId id) {
  return "the execution " + std::to_string(id);
}

}  // namespace

IndexedSpeculation::IndexedSpeculation(Controller& controller, const Metric& metric,
                                       const SpeculationOptions& options,
                                       std::span<const EntityId> bodies,
                                       std::span<const Sighting> entities,
                                       std::span<const Digest> minds)
    : controller_(controller), state_(metric, options, bodies, entities, minds) {
  for (std::size_t i = 0; i < bodies.size(); ++i) touched_agents_.insert(static_cast<AgentId>(i));
}

std::vector<SpeculationCommand> IndexedSpeculation::start() {
  Dispatches dispatches;
  controller_.start(dispatches);
  add_turns(dispatches);
  return settle();
}

void IndexedSpeculation::observed(ExecutionId id, Reads reads) {
  const ProceedPointer proceed = state_.proceed_in_flight(id);
  if (!proceed) {
    if (state_.resolution_in_flight(id)) {
      throw std::invalid_argument(name_of(id) + " is a resolution; it cannot observe");
    }
    return;
  }
  proceed->reads = std::move(reads);
  proceed->observed = true;
  if (!proceed->sure) add_readers(proceed->reads, proceed->step, id);
  suspects_.insert({proceed->step, PROCEED, proceed->agent});
  unchecked_.insert(proceed->agent);
  touch_turn(proceed->agent, proceed->step);
}

void IndexedSpeculation::proceeded(ExecutionId id) {
  const ProceedPointer proceed = state_.proceed_in_flight(id);
  if (!proceed) {
    if (state_.resolution_in_flight(id)) {
      throw std::invalid_argument(name_of(id) + " is a resolution; it cannot proceed");
    }
    return;
  }
  if (!proceed->observed) throw std::invalid_argument(name_of(id) + " has not observed");
  proceed->ended = true;
  touch_turn(proceed->agent, proceed->step);
  become_eligible(proceed->agent, proceed->step);
}

void IndexedSpeculation::resolved(ExecutionId id, Reads reads, std::vector<Write> writes,
                                  std::vector<Sighting> events, std::vector<Digest> minds) {
  const ResolutionPointer resolution = state_.resolution_in_flight(id);
  if (!resolution) {
    if (state_.proceed_in_flight(id)) {
      throw std::invalid_argument(name_of(id) + " is no resolution");
    }
    return;
  }
  if (minds.size() != resolution->members.size()) {
    throw std::invalid_argument("the result of " + name_of(id) + " has " +
                                std::to_string(minds.size()) + " minds; it needs " +
                                std::to_string(resolution->members.size()));
  }
  resolution->reads = std::move(reads);
  resolution->minds = std::move(minds);
  put(resolution, std::move(writes), std::move(events));
}

void IndexedSpeculation::lost(ExecutionId id) {
  lose(id, false);
}
void IndexedSpeculation::failed(ExecutionId id) {
  lose(id, true);
}

std::vector<AgentId> IndexedSpeculation::candidates() const {
  return {candidates_.begin(), candidates_.end()};
}

std::vector<SpeculationCommand> IndexedSpeculation::speculate(std::span<const AgentId> agents) {
  std::vector<std::pair<Step, AgentId>> ordered;
  for (const AgentId agent : agents) {
    if (!candidates_.contains(agent)) {
      throw std::invalid_argument("agent " + std::to_string(agent) +
                                  " is not a candidate for speculation");
    }
    ordered.emplace_back(state_.of(agent).next, agent);
  }
  std::ranges::sort(ordered);
  for (const auto& [step, agent] : ordered) proceed(agent, step, false);
  return taken();
}

Step IndexedSpeculation::next_step(AgentId agent) const {
  return state_.of(agent).next;
}

Position IndexedSpeculation::next_position(AgentId agent) const {
  return state_.position(agent, state_.of(agent).next, false);
}

std::vector<Sighting> IndexedSpeculation::answer(const Question& question, Step step,
                                                 bool final) const {
  return state_.versions.answer(question, step, final);
}

Step IndexedSpeculation::floor() const {
  return controller_.floor();
}

void IndexedSpeculation::validate() const {
  controller_.validate();
  state_.validate();
}

std::unique_ptr<Speculation> make_speculation(Controller& controller, const Metric& metric,
                                              const SpeculationOptions& options,
                                              std::span<const EntityId> bodies,
                                              std::span<const Sighting> entities,
                                              std::span<const Digest> minds) {
  if (bodies.size() != controller.agents() || minds.size() != bodies.size()) {
    throw std::invalid_argument("there must be a body and a mind for each agent");
  }
  return std::make_unique<IndexedSpeculation>(controller, metric, options, bodies, entities, minds);
}

}  // namespace metropolis
