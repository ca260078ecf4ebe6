#include "speculation_state.hpp"

#include <stdexcept>
#include <string>

#include "batch.hpp"
#include "speculation_checks.hpp"

namespace metropolis {

namespace {

void check(bool holds, ExecutionId id, const char* flaw) {
  if (!holds) throw std::logic_error(name_of(id) + " " + flaw);
}

}  // namespace

SpeculationState::SpeculationState(const Metric& metric, const SpeculationOptions& options,
                                   std::span<const EntityId> bodies,
                                   std::span<const Sighting> entities,
                                   std::span<const Digest> minds)
    : versions(metric, options.perception_radius), options_(options) {
  for (const Sighting& entity : entities) versions.add_initial(entity);
  agents_.resize(bodies.size());
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    agents_[i].body = bodies[i];
    agents_[i].final_mind = minds[i];
    agent_of_[bodies[i]] = static_cast<AgentId>(i);
  }
}

std::optional<AgentId> SpeculationState::agent_of(EntityId entity) const {
  const auto found = agent_of_.find(entity);
  return found == agent_of_.end() ? std::nullopt : std::optional(found->second);
}

ProceedPointer SpeculationState::proceed_in_flight(ExecutionId id) const {
  const auto found = proceeds.find(id);
  return found == proceeds.end() || found->second->ended ? nullptr : found->second;
}

ResolutionPointer SpeculationState::resolution_in_flight(ExecutionId id) const {
  const auto found = resolutions.find(id);
  return found == resolutions.end() || found->second->result ? nullptr : found->second;
}

std::optional<std::pair<Digest, ExecutionId>> SpeculationState::mind_before(AgentId agent,
                                                                            Step step) const {
  const AgentState& state = of(agent);
  if (step == state.final) return {{state.final_mind, NO_EXECUTION}};
  const ResolutionPointer result = at(state.results, step - 1);
  if (!result || !result->valid) return std::nullopt;
  return {{result->mind_of(agent), result->id}};
}

bool SpeculationState::is_valid(const ProceedState& proceed) const {
  const auto mind = mind_before(proceed.agent, proceed.step);
  // A mind that is being replaced may stay the same.
  return (!mind || mind->first == proceed.before) &&
         (proceed.sure || holds(proceed.reads, proceed.step, false));
}

bool SpeculationState::is_valid(const ResolutionState& resolution) const {
  const Step step = resolution.step;
  for (const ProceedPointer& one : resolution.proceeds) {
    if (at(of(one->agent).proceeds, step) != one) return false;
  }
  if (resolution.sure) return true;
  auto nearby = search(step);
  for (const AgentId member : resolution.members) {
    for (const AgentId other : coupled(member, nearby)) {
      if (!resolution.has(other) && is_eligible(other, step)) return false;
    }
  }
  return holds(resolution.reads, step, false);
}

bool SpeculationState::is_final(const ProceedState& proceed) const {
  const AgentState& state = of(proceed.agent);
  return proceed.step == state.final && proceed.before == state.final_mind &&
         (proceed.sure || holds(proceed.reads, proceed.step, true));
}

bool SpeculationState::may_commit(const TurnState& turn, const ResolutionState& result) const {
  const auto moves_another = [&](const Write& write) {
    const auto agent = agent_of(write.entity);
    return agent && !result.has(*agent);
  };
  return !result.predicted && result.members == turn.agents &&
         std::ranges::none_of(result.result->writes, moves_another) &&
         std::ranges::all_of(result.proceeds, [&](const auto& one) { return is_final(*one); }) &&
         (result.sure || holds(result.reads, turn.step, true));
}

bool SpeculationState::is_eligible(AgentId agent, Step step) const {
  const ProceedPointer proceed = at(of(agent).proceeds, step);
  return proceed && proceed->ended && !is_closed(agent, step);
}

bool SpeculationState::is_closed(AgentId agent, Step step) const {
  const TurnPointer& turn = of(agent).turn;
  return turn && turn->step == step && turn->open == 0;
}

bool SpeculationState::is_candidate(AgentId agent) const {
  const AgentState& state = of(agent);
  return state.next < options_.target_step && !state.proceeds.contains(state.next) &&
         !is_held(agent, state.next);
}

Position SpeculationState::position(AgentId agent, Step step, bool final) const {
  const Sighting* body = versions.value(of(agent).body, step, final);
  if (body == nullptr) {
    throw std::invalid_argument("agent " + std::to_string(agent) +
                                " has no body; has its controller been used elsewhere?");
  }
  return body->position;
}

std::vector<AgentId> SpeculationState::coupled(AgentId agent,
                                               SpeculationVersions::Search& search) const {
  std::vector<AgentId> found;
  for (const Sighting& one : search.take(position(agent, search.step(), false))) {
    const auto other = agent_of(one.entity);
    if (other && *other != agent) found.push_back(*other);
  }
  return found;
}

std::vector<AgentId> SpeculationState::component(AgentId agent, Step step) const {
  std::vector<AgentId> found{agent};
  auto nearby = search(step);
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (const AgentId other : coupled(found[i], nearby)) {
      if (is_eligible(other, step)) found.push_back(other);
    }
  }
  std::ranges::sort(found);
  return found;
}

std::vector<ResolutionPointer> SpeculationState::resolving_at(
    Step step, const std::vector<AgentId>& agents) const {
  std::map<ExecutionId, ResolutionPointer> found;
  for (const AgentId agent : agents) {
    if (const ResolutionPointer one = at(of(agent).resolving, step)) found[one->id] = one;
  }
  std::vector<ResolutionPointer> resolving;
  for (const auto& [id, one] : found) resolving.push_back(one);
  return resolving;
}

NumbersInUse SpeculationState::in_use() const {
  Batch<EntityId> entities;
  Batch<Digest> digests;
  const auto use = [&](const Sighting& one) {
    entities.insert(one.entity);
    digests.insert(one.digest);
  };
  const auto use_reads = [&](const Reads& reads) {
    for (const auto& [question, answer] : reads) {
      if (question.kind == Question::Kind::ENTITY) entities.insert(question.entity);
      for (const Sighting& one : answer) use(one);
    }
  };
  versions.for_each(use, [&](EntityId entity) { entities.insert(entity); });
  for (const AgentState& agent : agents_) {
    entities.insert(agent.body);
    digests.insert(agent.final_mind);
  }
  for (const auto& [id, proceed] : proceeds) {
    digests.insert(proceed->before);
    use_reads(proceed->reads);
  }
  for (const auto& [id, resolution] : resolutions) {
    for (const Mind& mind : resolution->minds) digests.insert(mind.digest);
    for (const ProceedPointer& proceed : resolution->proceeds) {
      digests.insert(proceed->before);
      use_reads(proceed->reads);
    }
    use_reads(resolution->reads);
  }
  return {entities.take(), digests.take()};
}

void SpeculationState::validate() const {
  versions.validate();
  for (const AgentState& agent : agents_) {
    Step next = agent.final;
    for (auto result = at(agent.results, next); result && result->valid;) {
      result = at(agent.results, ++next);
    }
    if (agent.next != next) throw std::logic_error("the next step of an agent is wrong");
    if (agent.turn) {
      check_open(*agent.turn);
      check_complete(*agent.turn);
    }
    for (const auto& [step, proceed] : agent.proceeds) {
      check(is_valid(*proceed), proceed->id, "is not valid");
      check(!proceed->sure || !proceed->observed ||
                (is_final(*proceed) && holds(proceed->reads, step, true)),
            proceed->id, "is sure and has read what is not final");
    }
    for (const auto& [step, result] : agent.results) {
      check(!result->valid || is_valid(*result), result->id, "is not valid");
    }
  }
}

void SpeculationState::check_open(const TurnState& turn) const {
  const auto open = std::ranges::count_if(turn.agents, [&](AgentId agent) {
    const ProceedPointer one = at(of(agent).proceeds, turn.step);
    return !one || !one->ended || !one->sure;
  });
  if (static_cast<std::size_t>(open) == turn.open) return;
  throw std::logic_error("step " + std::to_string(turn.step) + ": the open agents of the cluster " +
                         "of agent " + std::to_string(turn.agents.front()) + " are miscounted");
}

void SpeculationState::check_complete(const TurnState& turn) const {
  for (std::size_t i = 0; i < agents_.size(); ++i) {
    const auto other = static_cast<AgentId>(i);
    // Where those who have not committed the step stand is not final.
    if (agents_[i].final <= turn.step) continue;
    for (const AgentId member : turn.agents) {
      if (within(versions.metric(), position(member, turn.step, true),
                 position(other, turn.step, true), options_.cluster_radius, 0)) {
        throw std::logic_error("step " + std::to_string(turn.step) + ": agent " +
                               std::to_string(member) + " is dispatched without " +
                               std::to_string(other));
      }
    }
  }
}

bool SpeculationState::holds(const Reads& reads, Step step, bool final) const {
  return std::ranges::all_of(reads, [&](const Read& read) {
    return versions.answer(read.question, step, final) == read.answer;
  });
}

}  // namespace metropolis
