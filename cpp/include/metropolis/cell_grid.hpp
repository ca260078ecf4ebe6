// A spatial index of agents: a torus of cells under a pyramid of minimum steps.
//
// The plane is wrapped onto 2^a x 2^b cells, about one per two agents, so agents may move anywhere:
// distances on the torus never exceed real ones, so everything pruned by them is really far away.
// Cells are in Morton order: the four children of node n of a level are nodes 4n..4n+3 of the level
// below, up to the level on which the shorter side is one node.
//
// A node's minimum is a lower bound on the steps of its agents. A commit only raises steps, so it
// leaves the pyramid unchanged; a search that descends into a node updates its minimum.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "metropolis/cell_lists.hpp"
#include "metropolis/types.hpp"

namespace metropolis {

// Agent is as for CellLists.
template <class Agent>
class CellGrid : public CellLists<Agent> {
 public:
  // Cells for agents that begin at `positions`; the sides of a cell are at least `side_min`.
  CellGrid(std::span<const Position> positions, double side_min) {
    Position low{}, high{};
    if (!positions.empty()) low = high = positions[0];
    for (const Position& p : positions) {
      low = {std::min(low.x, p.x), std::min(low.y, p.y)};
      high = {std::max(high.x, p.x), std::max(high.y, p.y)};
    }
    low_ = low;
    double width = std::max(high.x - low.x, side_min);
    double height = std::max(high.y - low.y, side_min);
    divide(width, height, side_min, positions.size());
    // A few agents far away would make the cells so large that all others share one: the plane is
    // wrapped more tightly.
    while (std::max(side_x_, side_y_) > side_min && is_crowded(positions)) {
      (width > height ? width : height) /= 2;
      divide(width, height, side_min, positions.size());
    }
    const std::size_t cells = this->cells();
    this->heads_.assign(cells, this->NONE);
    level_begin_.reserve(levels_);
    std::size_t nodes = 0;
    for (std::uint32_t level = 0; level < levels_; ++level) {
      level_begin_.push_back(nodes);
      nodes += cells >> (2 * level);
    }
    minima_.assign(nodes, std::numeric_limits<Step>::max());
  }

  std::uint32_t cell(Position p) const {
    return morton(wrap((p.x - low_.x) / side_x_, x_bits_).index,
                  wrap((p.y - low_.y) / side_y_, y_bits_).index);
  }

  void insert(std::vector<Agent>& agents, std::uint32_t id, std::uint32_t cell) {
    CellLists<Agent>::insert(agents, id, cell);
    std::size_t node = cell;
    for (std::uint32_t level = 0; level < levels_; ++level, node >>= 2) {
      Step& minimum = minima_[level_begin_[level] + node];
      if (minimum <= agents[id].step) break;
      minimum = agents[id].step;
    }
  }

  // Visits every agent in the nodes for which `matters(minimum step, distance)` holds, where
  // distance is the least Chebyshev distance from p to the node. Nodes beyond `radius` are skipped.
  // `visit(id)` may make `matters` stricter during the search.
  template <class Matters, class Visit>
  void search(const std::vector<Agent>& agents, Position p, double radius, const Matters& matters,
              const Visit& visit) {
    const Wrapped x = wrap((p.x - low_.x) / side_x_, x_bits_);
    const Wrapped y = wrap((p.y - low_.y) / side_y_, y_bits_);
    const Search<Matters, Visit> search{agents, x.value, y.value, matters, visit};
    std::uint32_t level = 0;
    while (level + 1 < levels_ && std::min(side_x_, side_y_) * (1u << level) < radius) ++level;
    const Range columns = range(x.value, radius / side_x_, level, x_bits_);
    const Range rows = range(y.value, radius / side_y_, level, y_bits_);
    for (std::uint32_t j = 0; j < rows.count; ++j) {
      const std::uint32_t row = (rows.first + j) & rows.mask;
      for (std::uint32_t i = 0; i < columns.count; ++i) {
        descend(search, level, (columns.first + i) & columns.mask, row);
      }
    }
  }

  // The largest lower bound that the pyramid gives for an agent in `cell`; for tests.
  Step step_bound(std::uint32_t cell) const {
    Step bound = std::numeric_limits<Step>::min();
    for (std::uint32_t level = 0; level < levels_; ++level) {
      bound = std::max(bound, minima_[level_begin_[level] + (cell >> (2 * level))]);
    }
    return bound;
  }

 private:
  struct Wrapped {  // a coordinate on the torus
    std::uint32_t index;
    double value;  // in cells, in [0, cells per side)
  };
  struct Range {  // nodes of a level along one axis: (first + i) & mask for i < count
    std::uint32_t first, count, mask;
  };
  template <class Matters, class Visit>
  struct Search {
    const std::vector<Agent>& agents;
    double x, y;
    const Matters& matters;
    const Visit& visit;
  };

  std::size_t cells() const { return std::size_t{1} << (x_bits_ + y_bits_); }

  // Chooses the cells for `count` agents on a torus of this size.
  void divide(double width, double height, double side_min, std::size_t count) {
    const double side = std::sqrt(width * height / std::max(1.0, static_cast<double>(count) / 2));
    x_bits_ = bits_for(width / side);
    y_bits_ = bits_for(height / side);
    levels_ = std::min(x_bits_, y_bits_) + 1;
    side_x_ = std::max(width / static_cast<double>(1u << x_bits_), side_min);
    side_y_ = std::max(height / static_cast<double>(1u << y_bits_), side_min);
  }

  // Whether the agents are in less than an eighth of the cells.
  bool is_crowded(std::span<const Position> positions) const {
    std::vector<bool> used(cells());
    for (const Position& p : positions) used[cell(p)] = true;
    return static_cast<std::size_t>(std::ranges::count(used, true)) < cells() / 8;
  }

  // The exponent of the power of two nearest to `count`.
  static std::uint32_t bits_for(double count) {
    return static_cast<std::uint32_t>(std::clamp(std::lround(std::log2(count)), 0L, 14L));
  }

  static Wrapped wrap(double value, std::uint32_t bits) {
    const double whole = std::floor(value);
    const auto index =
        static_cast<std::uint32_t>(static_cast<std::int64_t>(whole)) & ((1u << bits) - 1);
    return {index, index + (value - whole)};
  }

  // Inserts a zero before each of 16 bits.
  static std::uint32_t spread(std::uint32_t bits) {
    bits = (bits | bits << 8) & 0x00ff00ffu;
    bits = (bits | bits << 4) & 0x0f0f0f0fu;
    bits = (bits | bits << 2) & 0x33333333u;
    return (bits | bits << 1) & 0x55555555u;
  }

  // Index of the node in column x and row y: the plane is a row of squares whose side is the
  // shorter side of the plane, each in Morton order.
  std::uint32_t morton(std::uint32_t x, std::uint32_t y, std::uint32_t level = 0) const {
    const std::uint32_t bits = levels_ - 1 - level;
    const std::uint32_t mask = (1u << bits) - 1;
    const std::uint32_t square = (x >> bits) | (y >> bits);
    return square << (2 * bits) | spread(x & mask) | spread(y & mask) << 1;
  }

  // The nodes of a level within `radius` of `centre`; both in cells.
  static Range range(double centre, double radius, std::uint32_t level, std::uint32_t bits) {
    const std::uint32_t nodes = 1u << (bits - level);
    const double size = static_cast<double>(1u << level);
    const double first = std::floor((centre - radius) / size);
    const double count = std::floor((centre + radius) / size) - first + 1;
    if (!(count < nodes)) return {0, nodes, nodes - 1};
    const auto index = static_cast<std::uint32_t>(static_cast<std::int64_t>(first));
    return {index, static_cast<std::uint32_t>(count), nodes - 1};
  }

  // Least distance on the torus, in cells, from `value` to the node [index, index + 1) * 2^level.
  static double gap(double value, std::uint32_t index, std::uint32_t level, std::uint32_t bits) {
    const double size = static_cast<double>(1u << level);
    const double whole = static_cast<double>(1u << bits);
    double ahead = value - static_cast<double>(index << level);
    if (ahead < 0) ahead += whole;
    return ahead <= size ? 0 : std::min(ahead - size, whole - ahead);
  }

  // Searches a node; returns its updated minimum step.
  template <class Matters, class Visit>
  Step descend(const Search<Matters, Visit>& search, std::uint32_t level, std::uint32_t x,
               std::uint32_t y) {
    const std::uint32_t node = morton(x, y, level);
    Step& minimum = minima_[level_begin_[level] + node];
    const double distance = std::max(gap(search.x, x, level, x_bits_) * side_x_,
                                     gap(search.y, y, level, y_bits_) * side_y_);
    if (!search.matters(minimum, distance)) return minimum;
    Step updated = std::numeric_limits<Step>::max();
    if (level == 0) {
      for (std::uint32_t id = this->heads_[node]; id != this->NONE; id = search.agents[id].next) {
        updated = std::min(updated, search.agents[id].step);
        search.visit(id);
      }
    } else {
      for (std::uint32_t child = 0; child < 4; ++child) {
        updated = std::min(updated,
                           descend(search, level - 1, 2 * x + (child & 1), 2 * y + (child >> 1)));
      }
    }
    minimum = updated;
    return updated;
  }

  Position low_;
  double side_x_ = 0, side_y_ = 0;
  std::uint32_t x_bits_ = 0, y_bits_ = 0, levels_ = 0;
  std::vector<Step> minima_;              // of all nodes, level by level
  std::vector<std::size_t> level_begin_;  // the first node of each level in minima_
};

}  // namespace metropolis
