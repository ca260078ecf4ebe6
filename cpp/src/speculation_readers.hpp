// Which executions asked about an entity or a place, by step.
#pragma once

#include <iterator>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "speculation_versions.hpp"

namespace metropolis {

// Entries of ended executions remain until their step is below the floor.
class SpeculationReaders {
 public:
  // cell: of the question's centre; nullopt: its radius is unusual.
  void add(const Question& question, std::optional<CellKey> cell, Step step, ExecutionId id) {
    if (question.kind == Question::Kind::ENTITY) {
      by_entity_[question.entity][step].push_back(id);
    } else if (cell) {
      steps_[step].by_cell[*cell].push_back(id);
    } else {
      steps_[step].wide.push_back(id);
    }
  }

  // Calls visit(id) for those that asked about `entity` in the steps [since, until).
  template <class Visit>
  void of_entity(EntityId entity, Step since, Step until, const Visit& visit) const {
    const auto steps = by_entity_.find(entity);
    if (steps == by_entity_.end()) return;
    for (auto at = steps->second.lower_bound(since); at != steps->second.end(); ++at) {
      if (at->first >= until) return;
      for (const ExecutionId id : at->second) visit(id);
    }
  }

  // The same for those that asked about a place in one of `cells`, or with an unusual radius.
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
