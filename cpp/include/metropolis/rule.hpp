// A rule of causality: two radii over Metric::within. Derived in metropolis/rules/rules.py.
#pragma once

#include <limits>

namespace metropolis {

// Agents of one step are coupled within couple_radius; an agent k > 0 steps ahead of another is
// blocked by it within block_radius, given a reach of k * max_velocity. Infinity means all agents,
// negative infinity none. couple_radius <= block_radius.
struct Rule {
  double couple_radius;
  double block_radius;

  bool is_lockstep() const { return couple_radius == std::numeric_limits<double>::infinity(); }
};

}  // namespace metropolis
