// The versions of entities and events, final ones and predictions, with a spatial index.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "metropolis/speculation.hpp"

namespace metropolis {

// The index of a cell of the plane.
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

// The steps [since, until) see another value of an entity than before; nullopt: there is none.
struct ValueChange {
  EntityId entity;
  Step since, until;
  std::optional<Sighting> before, now;
};

class SpeculationVersions {
 public:
  // radius: the usual one of questions.
  SpeculationVersions(Metric metric, double radius);

  const Metric& metric() const { return metric_; }

  void add_initial(const Sighting& value);

  // Add and remove a result; append what changes for readers.
  void put(const ResultPointer& result, std::vector<ValueChange>& changes);
  void drop(const ResultPointer& result, std::vector<ValueChange>& changes);
  // The result is final now: its versions remain without it.
  void finalise(SpeculationResult& result);

  // Drops what only steps below `floor` can read.
  void collect(Step floor);

  // Null: there is none.
  const Sighting* value(EntityId entity, Step step, bool final) const;

  std::vector<Sighting> answer(const Question& question, Step step, bool final) const;

  // A search for the values near several places, as a step sees them. It looks at each value that
  // is found once, so that a crowd takes no longer than its size. The versions do not change
  // meanwhile.
  class Search {
   public:
    Search(const SpeculationVersions& versions, double radius, Step step)
        : versions_(versions), radius_(radius), step_(step) {}
    // The values within the radius of `centre` that have not been taken before.
    std::vector<Sighting> take(Position centre);
    Step step() const { return step_; }

   private:
    bool is_near(Position centre, const Sighting& one) const;

    const SpeculationVersions& versions_;
    double radius_;
    Step step_;
    std::optional<Position> first_;                                   // taken without a list
    std::unordered_map<CellKey, std::vector<const Sighting*>> left_;  // by cell
  };

  // The cell of the centre of a question that cells_around() finds; nullopt: its radius is unusual.
  std::optional<CellKey> cell_of(const Question& question) const;
  // Appends the cells of all such questions that may perceive `position`.
  void cells_around(Position position, std::vector<CellKey>& cells) const;

  // The result, not final, that has written `entity` at the end of `step`; null: none.
  const SpeculationResult* writer(EntityId entity, Step step) const;
  // Whether a final result has written `entity` at the end of `step`.
  bool is_final(EntityId entity, Step step) const;

  // Calls value(sighting) for each value and event, removed(entity) for each version without one.
  template <class Value, class Removed>
  void for_each(const Value& value, const Removed& removed) const {
    for (std::size_t entity = 0; entity < versions_.size(); ++entity) {
      for (const Version& version : versions_[entity]) {
        if (version.value) {
          value(*version.value);
        } else {
          removed(static_cast<EntityId>(entity));
        }
      }
    }
    for (const auto& [step, events] : events_) {
      for (const auto& [event, result] : events) value(event);
    }
  }

  // Throws std::logic_error if two versions of an entity begin with the same step.
  void validate() const;

 private:
  struct Version {
    Step since;  // the first step that sees it
    std::optional<Sighting> value;
    ResultPointer result;  // null: it is final
  };
  using Cell = std::vector<std::pair<EntityId, int>>;  // with the number of versions in the cell

  // The version of `entity` that a result, not final, has written; throws std::invalid_argument if
  // it was collected, as can only happen when another moves the controller.
  std::vector<Version>::iterator written(EntityId entity, const SpeculationResult& result);
  // The version of `entity` that begins with the step `since`; null: none.
  const Version* beginning(EntityId entity, Step since) const;
  CellKey cell_at(Position position) const;
  // Whether values within `radius` are found by cells; otherwise all are visited.
  bool has_cells(double radius) const;
  template <class Visit>
  void for_cells(Position centre, double radius, const Visit& visit) const;
  template <class Visit>
  void for_cell(CellKey key, Step step, bool final, const Visit& visit) const;
  template <class Visit>
  void for_all(Step step, bool final, const Visit& visit) const;
  template <class Visit>
  void for_near(Position centre, double radius, Step step, bool final, const Visit& visit) const;
  void insert(EntityId entity, Version version);
  void forget(EntityId entity, const Version& version);
  void collect(EntityId entity, Step floor);
  void report(EntityId entity, Step since, std::vector<ValueChange>& changes) const;

  Metric metric_;
  bool planar_;
  double radius_;                               // the usual one of questions
  double side_;                                 // of a cell
  std::vector<std::vector<Version>> versions_;  // of each entity, by step
  std::unordered_map<CellKey, Cell> cells_;
  std::map<Step, std::vector<std::pair<Sighting, ResultPointer>>> events_;  // by the step that sees
  std::map<Step, std::vector<EntityId>> stale_;  // entities to collect once the floor is there
};

}  // namespace metropolis
