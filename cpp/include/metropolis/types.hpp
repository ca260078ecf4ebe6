// Vocabulary shared by the whole core.
#pragma once

#include <cstdint>

namespace metropolis {

using AgentId = std::int32_t;  // index of an agent, 0-based
using Step = std::int32_t;     // logical time

struct Position {
  double x = 0;
  double y = 0;
  friend bool operator==(const Position&, const Position&) = default;
};

}  // namespace metropolis
