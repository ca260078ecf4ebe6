// The executions of a speculative run and what is true of them, as
// metropolis/speculation/executions.py specifies.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "speculation_versions.hpp"

namespace metropolis {

struct ProceedState {
  ExecutionId id;
  AgentId agent;
  Step step;
  Digest before;
  bool sure;  // what it has read is final
  bool observed = false;
  bool ended = false;
  Reads reads;
};
using ProceedPointer = std::shared_ptr<ProceedState>;

struct ResolutionState {
  ExecutionId id;
  Step step;
  std::vector<AgentId> members;
  std::vector<ProceedPointer> proceeds;
  bool sure;  // as its proceeds, and what it reads is final
  bool valid = true;
  bool predicted = false;  // nothing was executed: the result is a member's forecast, never valid
  Reads reads;
  ResultPointer result;     // null: in flight
  std::vector<Mind> minds;  // of the members

  Digest mind_of(AgentId agent) const {
    return std::ranges::lower_bound(minds, agent, {}, &Mind::agent)->digest;
  }
  bool has(AgentId agent) const { return std::ranges::binary_search(members, agent); }
};
using ResolutionPointer = std::shared_ptr<ResolutionState>;

// A cluster that the controller has dispatched and that is not committed.
struct TurnState {
  Step step;
  std::vector<AgentId> agents;
  std::size_t open;  // the number of agents whose proceed has not ended or is not sure
};
using TurnPointer = std::shared_ptr<TurnState>;

struct AgentState {
  EntityId body;
  Digest final_mind;
  Step final = 0;  // the first step that is not committed
  Step next = 0;   // the first step without a valid result
  TurnPointer turn;
  std::map<Step, ProceedPointer> proceeds;      // the valid ones, in flight and ended
  std::map<Step, ResolutionPointer> results;    // valid ones, and predictions
  std::map<Step, ResolutionPointer> resolving;  // in flight
};

// The state by step, or null.
template <class Pointer>
Pointer at(const std::map<Step, Pointer>& states, Step step) {
  const auto found = states.find(step);
  return found == states.end() ? nullptr : found->second;
}

class SpeculationState {
 public:
  SpeculationState(const Metric& metric, const SpeculationOptions& options,
                   std::span<const EntityId> bodies, std::span<const Sighting> entities,
                   std::span<const Digest> minds);

  AgentState& of(AgentId agent) { return agents_[static_cast<std::size_t>(agent)]; }
  const AgentState& of(AgentId agent) const { return agents_[static_cast<std::size_t>(agent)]; }
  const std::vector<AgentState>& agents() const { return agents_; }
  // Whose body `entity` is.
  std::optional<AgentId> agent_of(EntityId entity) const;

  // Null: unknown, or ended.
  ProceedPointer proceed_in_flight(ExecutionId id) const;
  ResolutionPointer resolution_in_flight(ExecutionId id) const;

  // The mind at the beginning of `step` and the resolution whose result it is; nullopt: the step
  // before has no valid result.
  std::optional<std::pair<Digest, ExecutionId>> mind_before(AgentId agent, Step step) const;

  // Whether the inputs are as they were.
  bool is_valid(const ProceedState& proceed) const;
  bool is_valid(const ResolutionState& resolution) const;
  // Whether the inputs are as the final versions say.
  bool is_final(const ProceedState& proceed) const;
  // Whether `result` is that of the dispatched cluster, with final inputs, and moves no other
  // agent.
  bool may_commit(const TurnState& turn, const ResolutionState& result) const;

  // Whether the agent may be resolved speculatively: its proceed of `step` has ended.
  bool is_eligible(AgentId agent, Step step) const;
  // Whether the agent's cluster is dispatched and only its resolution is missing.
  bool is_closed(AgentId agent, Step step) const;
  bool is_before_target(Step step) const { return step < options_.target_step; }
  bool is_held(AgentId agent, Step step) const { return held.contains({agent, step}); }
  bool is_candidate(AgentId agent) const;

  // Where the agent stands at the beginning of `step`.
  Position position(AgentId agent, Step step, bool final) const;
  // A search for agents that act in one cluster at `step`.
  SpeculationVersions::Search search(Step step) const {
    return {versions, options_.cluster_radius, step};
  }
  // The agents other than `agent` that act in one cluster with it at the step of the search, and
  // that the search has not found before.
  std::vector<AgentId> coupled(AgentId agent, SpeculationVersions::Search& search) const;
  // The cluster of `agent` at `step`, as predicted.
  std::vector<AgentId> component(AgentId agent, Step step) const;

  // The resolutions in flight of `step` with one of `agents` as a member, by id.
  std::vector<ResolutionPointer> resolving_at(Step step, const std::vector<AgentId>& agents) const;

  // Whether each question has the same answer now.
  bool holds(const Reads& reads, Step step, bool final) const;

  NumbersInUse in_use() const;

  // Throws std::logic_error that names an execution.
  void validate() const;

  SpeculationVersions versions;
  std::unordered_map<ExecutionId, ProceedPointer> proceeds;        // the valid ones
  std::unordered_map<ExecutionId, ResolutionPointer> resolutions;  // in flight, and results
  std::set<std::pair<AgentId, Step>> held;  // failed speculatively: not repeated before it is sure

 private:
  // Throws std::logic_error if the open agents of a dispatched cluster are not those counted.
  void check_open(const TurnState& turn) const;
  // Throws std::logic_error if an agent that belongs to the dispatched cluster has committed its
  // step without it. (That committed results have read what is final needs their reads, which are
  // not kept.)
  void check_complete(const TurnState& turn) const;

  SpeculationOptions options_;
  std::vector<AgentState> agents_;
  std::unordered_map<EntityId, AgentId> agent_of_;
};

}  // namespace metropolis
