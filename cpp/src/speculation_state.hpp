// The executions of a speculative run and what is true of them, as
// metropolis/speculation/executions.py specifies; and the index of what each has read.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
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
  bool sure;
  bool observed = false;
  bool ended = false;
  Digest after = 0;
  Reads reads;
};
using ProceedPointer = std::shared_ptr<ProceedState>;

struct ResolutionState {
  ExecutionId id;
  Step step;
  std::vector<AgentId> members;
  std::vector<ProceedPointer> proceeds;
  bool sure;
  bool valid = true;
  Reads reads;
  ResultPointer result;  // null: in flight
  std::vector<Digest> minds;

  Digest mind_of(AgentId agent) const {
    const auto found = std::ranges::lower_bound(members, agent);
    return minds[static_cast<std::size_t>(found - members.begin())];
  }
  bool has(AgentId agent) const { return std::ranges::binary_search(members, agent); }
};
using ResolutionPointer = std::shared_ptr<ResolutionState>;

struct TurnState {
  Step step;
  std::vector<AgentId> agents;
};
using TurnPointer = std::shared_ptr<const TurnState>;

struct AgentState {
  EntityId body;
  Step final = 0;  // the first step that is not committed
  Step next = 0;   // the first step without a valid result
  Digest final_mind = 0;
  TurnPointer turn;
  std::map<Step, ProceedPointer> proceeds;
  std::map<Step, ResolutionPointer> results;
  std::map<Step, ResolutionPointer> resolving;
};

// Which executions asked about a place or an entity, by step. Entries of ended executions remain
// until their step is below the floor.
class ReaderIndex {
 public:
  void add(const Question& question, Step step, ExecutionId id, CellKey cell, bool wide) {
    if (question.kind == Question::Kind::ENTITY) {
      by_entity_[question.entity][step].push_back(id);
    } else if (wide) {
      steps_[step].wide.push_back(id);
    } else {
      steps_[step].by_cell[cell].push_back(id);
    }
  }

  // Calls visit(id) for the readers of `entity` in the steps [since, until).
  template <class Visit>
  void of_entity(EntityId entity, Step since, Step until, const Visit& visit) const {
    const auto steps = by_entity_.find(entity);
    if (steps == by_entity_.end()) return;
    for (auto at = steps->second.lower_bound(since); at != steps->second.end(); ++at) {
      if (at->first >= until) return;
      for (const ExecutionId id : at->second) visit(id);
    }
  }

  // The same for those whose centre lies in one of `cells`.
  template <class Visit>
  void of_cells(const std::vector<CellKey>& cells, Step since, Step until,
                const Visit& visit) const {
    for (auto at = steps_.lower_bound(since); at != steps_.end() && at->first < until; ++at) {
      for (const ExecutionId id : at->second.wide) visit(id);
      for (const CellKey cell : cells) {
        const auto found = at->second.by_cell.find(cell);
        if (found == at->second.by_cell.end()) continue;
        for (const ExecutionId id : found->second) visit(id);
      }
    }
  }

  void collect(Step floor) {
    steps_.erase(steps_.begin(), steps_.lower_bound(floor));
    if (floor < collected_ + COLLECT_STEPS) return;
    collected_ = floor;
    for (auto entry = by_entity_.begin(); entry != by_entity_.end();) {
      auto& steps = entry->second;
      steps.erase(steps.begin(), steps.lower_bound(floor));
      entry = steps.empty() ? by_entity_.erase(entry) : std::next(entry);
    }
  }

 private:
  static constexpr Step COLLECT_STEPS = 16;
  struct AtStep {
    std::unordered_map<CellKey, std::vector<ExecutionId>> by_cell;
    std::vector<ExecutionId> wide;
  };
  std::map<Step, AtStep> steps_;
  std::unordered_map<EntityId, std::map<Step, std::vector<ExecutionId>>> by_entity_;
  Step collected_ = 0;
};

}  // namespace metropolis
