// The chance that an agent comes into another's sight: learned from movement.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "metropolis/types.hpp"

namespace metropolis {

// A table of (distance, lag): how often an agent at that distance from where another stands `lag`
// steps later was in its sight then.
class SightChances {
 public:
  explicit SightChances(double radius) : radius_(radius) {}

  void add(double distance, Step lag, bool in_sight) {
    Count& count = counts_[index(distance, lag)];
    ++count.pairs;
    if (in_sight) ++count.in_sight;
  }

  // Of an unknown case: 1/4.
  double chance(double distance, Step lag) const {
    const Count& count = counts_[index(distance, lag)];
    return (static_cast<double>(count.in_sight) + 0.5) / (static_cast<double>(count.pairs) + 2);
  }

  // The lags that are worth learning: geometric.
  static constexpr std::array<Step, 14> LAGS{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128};

 private:
  struct Count {
    std::int64_t pairs = 0;
    std::int64_t in_sight = 0;
  };
  static constexpr std::size_t DISTANCES = 64, LAG_CLASSES = 24;

  // Single units near the radius, geometric beyond.
  std::size_t index(double distance, Step lag) const {
    const double beyond = std::max(0.0, distance - radius_);
    const double fine = beyond <= 8 ? std::ceil(beyond) : 8 + std::ceil(3 * std::log2(beyond / 8));
    const double late = lag <= 4 ? lag : 4 + std::floor(2 * std::log2(static_cast<double>(lag) / 4));
    const auto row = std::min(static_cast<std::size_t>(fine), DISTANCES - 1);
    return row * LAG_CLASSES + std::min(static_cast<std::size_t>(late), LAG_CLASSES - 1);
  }

  double radius_;
  std::vector<Count> counts_ = std::vector<Count>(DISTANCES * LAG_CLASSES);
};

}  // namespace metropolis
