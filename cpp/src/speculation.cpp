#include "metropolis/speculation.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "indexed_speculation.hpp"
#include "metropolis/checks.hpp"
#include "speculation_checks.hpp"

namespace metropolis {

namespace {

void misfit(const char* event, ExecutionId id) {
  throw std::invalid_argument(std::string(event) + " does not fit " + name_of(id));
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
  if (started_) throw std::invalid_argument("the speculation has been started before");
  Dispatches dispatches;
  controller_.start(dispatches);
  const auto is_later = [](const auto& cluster) { return cluster.step != 0; };
  const bool is_whole = dispatches.agents.size() == controller_.agents();
  if (state_.is_before_target(0) &&
      (!is_whole || std::ranges::any_of(dispatches.clusters, is_later))) {
    throw std::invalid_argument("the controller does not begin with all agents at step 0");
  }
  started_ = true;
  add_turns(dispatches);
  return settle();
}

void IndexedSpeculation::observed(ExecutionId id, Reads reads) {
  check_event(id);
  const ProceedPointer proceed = state_.proceed_in_flight(id);
  if (!proceed) {
    if (state_.resolution_in_flight(id)) misfit("Observed", id);
    return;
  }
  if (proceed->observed) throw std::invalid_argument(name_of(id) + " has observed before");
  check_reads(state_.versions.metric(), id, reads);
  if (proceed->sure && !state_.holds(reads, proceed->step, true)) {
    throw std::invalid_argument(name_of(id) + " is sure, and has not read the final versions");
  }
  proceed->reads = std::move(reads);
  proceed->observed = true;
  if (!proceed->sure) add_readers(proceed->reads, proceed->step, id);
  suspects_.push({proceed->step, PROCEED, proceed->agent});
  uncheck(proceed->agent, proceed->step);
  touch_turn(proceed->agent, proceed->step);
}

void IndexedSpeculation::proceeded(ExecutionId id) {
  check_event(id);
  const ProceedPointer proceed = state_.proceed_in_flight(id);
  if (!proceed) {
    if (state_.resolution_in_flight(id)) misfit("Proceeded", id);
    return;
  }
  if (!proceed->observed) misfit("Proceeded", id);
  proceed->ended = true;
  if (proceed->sure) --state_.of(proceed->agent).turn->open;
  touch_turn(proceed->agent, proceed->step);
  become_eligible(proceed->agent, proceed->step);
}

void IndexedSpeculation::resolved(ExecutionId id, Reads reads, std::vector<Write> writes,
                                  std::vector<Sighting> events, std::vector<Mind> minds,
                                  std::vector<Forecast> forecasts) {
  check_event(id);
  const ResolutionPointer resolution = state_.resolution_in_flight(id);
  if (!resolution) {
    if (state_.proceed_in_flight(id)) misfit("Resolved", id);
    return;
  }
  const Metric& metric = state_.versions.metric();
  check_reads(metric, id, reads);
  check_writes(metric, id, writes);
  check_events(metric, id, events);
  check_minds(id, resolution->members, minds);
  check_forecasts(metric, id, resolution->members, forecasts);
  for (const Write& write : writes) {
    const auto agent = state_.agent_of(write.entity);
    if (!agent) continue;
    // A prediction that moves another agent is not committed.
    if (write.value && (!resolution->sure || resolution->has(*agent))) continue;
    throw std::invalid_argument(name_of(id) + (write.value ? " moves" : " removes") +
                                " the body of agent " + std::to_string(*agent) +
                                (write.value ? ", which is no member" : ""));
  }
  if (resolution->sure && !state_.holds(reads, resolution->step, true)) {
    throw std::invalid_argument(name_of(id) + " is sure, and has not read the final versions");
  }
  const auto is_final = [&](const Write& write) {
    return state_.versions.is_final(write.entity, resolution->step);
  };
  if (std::ranges::any_of(writes, is_final)) {
    refuse(resolution);
    return;
  }
  resolution->reads = std::move(reads);
  resolution->minds = std::move(minds);
  put(resolution, std::move(writes), std::move(events));
  for (const Forecast& forecast : forecasts) predict(*resolution, forecast);
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

bool IndexedSpeculation::is_candidate(AgentId agent) const {
  return candidates_.contains(agent);
}

std::vector<SpeculationCommand> IndexedSpeculation::speculate(std::span<const AgentId> agents) {
  check_runs();
  std::vector<std::pair<Step, AgentId>> ordered;
  for (const AgentId agent : agents) {
    if (!candidates_.contains(agent)) {
      throw std::invalid_argument("agent " + std::to_string(agent) +
                                  " is not a candidate for speculation");
    }
    ordered.emplace_back(state_.of(agent).next, agent);
  }
  std::ranges::sort(ordered);
  if (std::ranges::adjacent_find(ordered) != ordered.end()) {
    throw std::invalid_argument("an agent is named twice: " + format_agents(agents));
  }
  for (const auto& [step, agent] : ordered) proceed(agent, step, false);
  return take_commands();
}

Step IndexedSpeculation::next_step(AgentId agent) const {
  return state_.of(agent).next;
}

std::vector<Sighting> IndexedSpeculation::answer(const Question& question, Step step,
                                                 bool final) const {
  return state_.versions.answer(question, step, final);
}

Step IndexedSpeculation::floor() const {
  return controller_.floor();
}

NumbersInUse IndexedSpeculation::in_use() const {
  return state_.in_use();
}

void IndexedSpeculation::validate() const {
  controller_.validate();
  state_.validate();
  if (!suspects_.empty() || failed_) return;  // the candidates are those before the events
  for (std::size_t i = 0; started_ && i < state_.agents().size(); ++i) {
    const auto agent = static_cast<AgentId>(i);
    if (state_.is_candidate(agent) == candidates_.contains(agent)) continue;
    throw std::logic_error("agent " + std::to_string(agent) + " is wrongly a candidate or not");
  }
}

void IndexedSpeculation::check_event(ExecutionId id) const {
  check_runs();
  if (id < 1 || id > last_id_) throw std::invalid_argument("there is no " + name_of(id).substr(4));
}

void IndexedSpeculation::check_runs() const {
  if (!started_) throw std::invalid_argument("the speculation has not started");
  if (failed_) throw std::invalid_argument("the speculation has already failed");
}

std::unique_ptr<Speculation> make_speculation(Controller& controller, const Metric& metric,
                                              const SpeculationOptions& options,
                                              std::span<const EntityId> bodies,
                                              std::span<const Sighting> entities,
                                              std::span<const Digest> minds) {
  check_speculation(controller, metric, options, bodies, entities, minds);
  return std::make_unique<IndexedSpeculation>(controller, metric, options, bodies, entities, minds);
}

}  // namespace metropolis
