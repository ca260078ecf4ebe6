// The versions of entities and events, final ones and predictions, with a spatial index.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "metropolis/speculation.hpp"

namespace metropolis {

// The index of a cell of the plane, or of a node of a graph.
using CellKey = std::uint64_t;

// What a resolution wrote at the end of a step.
struct SpeculationResult {
  ExecutionId id;
  Step step;
  std::vector<Write> writes;
  std::vector<Sighting> events;
  bool final = false;
};
using ResultPointer = std::shared_ptr<SpeculationResult>;

template <class M>
class SpeculationVersions {
 public:
  struct Version {
    Step since;  // the first step that sees it
    std::optional<Sighting> value;
    ResultPointer result;  // null: it existed at step 0

    bool final() const { return !result || result->final; }
  };

  SpeculationVersions(M metric, double radius)
      : metric_(std::move(metric)), side_(std::max(1.0, radius)) {}

  const M& metric() const { return metric_; }

  void add_initial(const Sighting& value) { insert(value.entity, {0, value, nullptr}); }

  // Calls changed(entity, since, until, before, now) for each entity whose value in the steps
  // [since, until) changes; before and now are pointers to its values, null: none.
  template <class Changed>
  void put(const ResultPointer& result, const Changed& changed) {
    for (const Write& write : result->writes) {
      insert(write.entity, {result->step + 1, write.value, result});
      report(write.entity, result->step + 1, changed);
    }
    auto& events = events_[result->step + 1];
    for (const Sighting& event : result->events) events.emplace_back(event, result);
  }

  template <class Changed>
  void drop(const ResultPointer& result, const Changed& changed) {
    for (const Write& write : result->writes) {
      report(write.entity, result->step + 1, changed);
      auto& versions = versions_[index(write.entity)];
      const auto found = std::ranges::find(versions, result, &Version::result);
      forget(write.entity, *found);
      versions.erase(found);
    }
    const auto events = events_.find(result->step + 1);
    if (events == events_.end()) return;
    std::erase_if(events->second, [&](const auto& one) { return one.second == result; });
    if (events->second.empty()) events_.erase(events);
  }

  // Drops what only steps below `floor` can read.
  void collect(Step floor) {
    events_.erase(events_.begin(), events_.lower_bound(floor));
    while (!stale_.empty() && stale_.begin()->first <= floor) {
      for (const EntityId entity : stale_.begin()->second) collect(entity, floor);
      stale_.erase(stale_.begin());
    }
  }

  // Null: there is none.
  const Sighting* value(EntityId entity, Step step, bool final) const {
    if (index(entity) >= versions_.size()) return nullptr;
    const auto& versions = versions_[index(entity)];
    auto after = std::ranges::upper_bound(versions, step, {}, &Version::since);
    while (after != versions.begin()) {
      --after;
      if (!final || after->final()) return after->value ? &*after->value : nullptr;
    }
    return nullptr;
  }

  std::vector<Sighting> answer(const Question& question, Step step, bool final) const {
    std::vector<Sighting> found;
    switch (question.kind) {
      case Question::Kind::ENTITY:
        if (const Sighting* known = value(question.entity, step, final)) found.push_back(*known);
        return found;
      case Question::Kind::ENTITIES:
        for_near(question.centre, question.radius, step, final, [&](const Sighting& one) {
          if (metric_.perceives(question.centre, one.position, question.radius)) {
            found.push_back(one);
          }
        });
        std::ranges::sort(found, {}, &Sighting::entity);
        return found;
      case Question::Kind::EVENTS: {
        const auto events = events_.find(step);
        if (events == events_.end()) return found;
        for (const auto& [event, result] : events->second) {
          if (final && !result->final) continue;
          if (metric_.perceives(question.centre, event.position, question.radius)) {
            found.push_back(event);
          }
        }
        std::ranges::stable_sort(found, {}, &Sighting::entity);
        return found;
      }
    }
    return found;
  }

  // Visits the values, as `step` sees them, in the cells within `radius` of `centre`.
  template <class Visit>
  void for_near(Position centre, double radius, Step step, bool final, const Visit& visit) const {
    seen_.clear();
    const auto visit_cell = [&](const Cell& cell) {
      for (const auto& [entity, count] : cell) {
        const Sighting* known = value(entity, step, final);
        if (known == nullptr || std::ranges::find(seen_, entity) != seen_.end()) continue;
        seen_.push_back(entity);
        visit(*known);
      }
    };
    if (!M::PLANAR || !(radius <= WIDE * side_)) {
      for (std::size_t entity = 0; entity < versions_.size(); ++entity) {
        const Sighting* known = value(static_cast<EntityId>(entity), step, final);
        if (known != nullptr) visit(*known);
      }
      return;
    }
    for_cells(centre, radius, [&](CellKey key) {
      const auto cell = cells_.find(key);
      if (cell != cells_.end()) visit_cell(cell->second);
    });
  }

  // Calls visit(key) for each cell within `radius` of `centre`; requires a planar metric.
  template <class Visit>
  void for_cells(Position centre, double radius, const Visit& visit) const {
    const double far = radius + ROUNDING;
    const auto [left, top] = column_row({centre.x - far, centre.y - far});
    const auto [right, bottom] = column_row({centre.x + far, centre.y + far});
    for (std::int64_t x = left; x <= right; ++x) {
      for (std::int64_t y = top; y <= bottom; ++y) visit(key_of(x, y));
    }
  }

  CellKey cell_of(Position position) const {
    const auto [x, y] = column_row(position);
    return key_of(x, y);
  }

  double side() const { return side_; }

  // Throws std::logic_error if two versions of an entity begin with the same step.
  void validate() const {
    for (const auto& versions : versions_) {
      for (std::size_t i = 1; i < versions.size(); ++i) {
        if (versions[i - 1].since >= versions[i].since) {
          throw std::logic_error("two results write the same entity at the same step");
        }
      }
    }
  }

  // The result, not final, that has written `entity` at the end of `step`; null: none.
  const SpeculationResult* writer(EntityId entity, Step step) const {
    if (index(entity) >= versions_.size()) return nullptr;
    for (const Version& version : versions_[index(entity)]) {
      if (version.since == step + 1 && !version.final()) return version.result.get();
    }
    return nullptr;
  }

 private:
  static constexpr double WIDE = 16;        // in cells: beyond it, all entities are visited
  static constexpr double ROUNDING = 1e-6;  // more than the spacing of doubles at 1e9
  using Cell = std::vector<std::pair<EntityId, int>>;  // with the number of versions in the cell

  static std::size_t index(EntityId entity) { return static_cast<std::size_t>(entity); }
  static CellKey key_of(std::int64_t x, std::int64_t y) {
    return static_cast<CellKey>(x) << 32 | (static_cast<CellKey>(y) & 0xffffffffu);
  }
  std::pair<std::int64_t, std::int64_t> column_row(Position p) const {
    return {static_cast<std::int64_t>(std::floor(p.x / side_)),
            static_cast<std::int64_t>(std::floor(p.y / side_))};
  }

  void insert(EntityId entity, Version version) {
    if (index(entity) >= versions_.size()) versions_.resize(index(entity) + 1);
    auto& versions = versions_[index(entity)];
    if (version.value) {
      Cell& cell = cells_[cell_of(version.value->position)];
      const auto found = std::ranges::find(cell, entity, &Cell::value_type::first);
      if (found == cell.end()) {
        cell.emplace_back(entity, 1);
      } else {
        ++found->second;
      }
    }
    if (!versions.empty() || !version.value) stale_[version.since].push_back(entity);
    const auto after = std::ranges::upper_bound(versions, version.since, {}, &Version::since);
    versions.insert(after, std::move(version));
  }

  void forget(EntityId entity, const Version& version) {
    if (!version.value) return;
    const auto cell = cells_.find(cell_of(version.value->position));
    const auto found = std::ranges::find(cell->second, entity, &Cell::value_type::first);
    if (--found->second == 0) cell->second.erase(found);
    if (cell->second.empty()) cells_.erase(cell);
  }

  void collect(EntityId entity, Step floor) {
    auto& versions = versions_[index(entity)];
    std::size_t first = 0;
    while (first + 1 < versions.size() && versions[first + 1].since <= floor) ++first;
    for (std::size_t i = 0; i < first; ++i) forget(entity, versions[i]);
    versions.erase(versions.begin(), versions.begin() + static_cast<std::ptrdiff_t>(first));
  }

  // Reports the difference that the version of `entity` that begins with `since` makes.
  template <class Changed>
  void report(EntityId entity, Step since, const Changed& changed) const {
    const auto& versions = versions_[index(entity)];
    const auto here = std::ranges::lower_bound(versions, since, {}, &Version::since);
    const auto value_of = [](const Version& version) {
      return version.value ? &*version.value : nullptr;
    };
    const Sighting* before = here == versions.begin() ? nullptr : value_of(*std::prev(here));
    const Sighting* now = value_of(*here);
    if (before == now || (before && now && *before == *now)) return;
    const auto after = std::next(here);
    const Step until = after == versions.end() ? std::numeric_limits<Step>::max() : after->since;
    changed(entity, since, until, before, now);
  }

  M metric_;
  double side_;
  std::vector<std::vector<Version>> versions_;  // of each entity, by step
  std::unordered_map<CellKey, Cell> cells_;
  std::map<Step, std::vector<std::pair<Sighting, ResultPointer>>> events_;  // by the step that sees
  std::map<Step, std::vector<EntityId>> stale_;  // entities to collect once the floor is there
  mutable std::vector<EntityId> seen_;
};

}  // namespace metropolis
