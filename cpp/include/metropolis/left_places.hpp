// The places that entities have left, for the dependencies by value of a run
// (metropolis/runtime/live/recorded_dependencies.py).
//
// A change depends on steps of agents. An agent knows a change if, for each of these steps, it
// knows that step or a later one of the same agent. An agent that knows the last time at which an
// entity left a place of a cell knows all earlier times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "metropolis/metric.hpp"
#include "metropolis/types.hpp"

namespace metropolis {

class LeftPlaces {
 public:
  using Entity = std::int32_t;
  using Change = std::vector<std::pair<AgentId, Step>>;
  using Known = std::function<std::int64_t(AgentId)>;  // the latest known step; -1: none is known

  // Cells are nodes of a graph, or squares of the plane, as in metropolis/world/cells.py: their
  // side is at least 1, and at least every finite radius. Members throw std::invalid_argument when
  // a place is no valid position or a radius is greater.
  LeftPlaces(Metric metric, double cell_size);

  // Records that `entity` leaves a place. Steps must not decrease; a change that depends on a
  // single agent depends on that agent's `step`. Throws also if it is called during unknown_to(),
  // by `known`.
  void leave(Entity entity, Position place, Step step, Change change);

  // Whether a place that is perceived from `centre` was left after the step `since`.
  bool has_left(Position centre, double radius, Step since);

  // Returns the changes after the step `since` (nullopt: all) by which entities left places that
  // are perceived from `centre` and that the agent does not know. Of several changes that depend on
  // one agent alone, it returns the last.
  std::vector<std::pair<Entity, Change>> unknown_to(AgentId agent, const Known& known,
                                                    Position centre, double radius,
                                                    std::optional<Step> since);

 private:
  struct Left {
    Position place;
    Step step;
    Change change;
  };
  struct Leaver {
    Entity entity;
    AgentId writer;          // the only agent that all its changes depend on, or SEVERAL
    std::vector<Left> left;  // the last time at each place, in order
  };
  struct Leavers {
    std::vector<Leaver> leavers;                // in the order of their last times
    std::unordered_map<AgentId, Step> checked;  // agent -> it knows all changes up to this step
  };
  using Cell = std::pair<std::int64_t, std::int64_t>;
  struct CellHash {
    std::size_t operator()(const Cell& cell) const {
      return static_cast<std::size_t>(cell.first) * 0x9E3779B97F4A7C15 ^
             static_cast<std::size_t>(cell.second);
    }
  };
  // A call of unknown_to() that is under way.
  class Search {
   public:
    explicit Search(int& count) : count_(count) { ++count_; }
    ~Search() { --count_; }
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;

   private:
    int& count_;
  };
  static constexpr AgentId SEVERAL = -1;

  void check(Position place) const;
  bool perceives(Position p, Position q, double radius) const;
  Cell cell(double x, double y) const;
  // The leavers of the cells within `radius`, and possibly of further cells.
  std::vector<Leavers*> near(Position centre, double radius);

  Metric metric_;
  double size_;
  std::unordered_map<Cell, Leavers, CellHash> cells_;
  Step step_ = 0;  // the step at which a place was left last
  int searches_ = 0;
};

}  // namespace metropolis
