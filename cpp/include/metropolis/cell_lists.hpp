// The agents of each cell, as linked lists: what CellGrid and NodeIndex share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace metropolis {

// Agent has `step` and `next`; the lists own `next`, the next agent in the same cell.
template <class Agent>
class CellLists {
 public:
  static constexpr std::uint32_t NONE = std::numeric_limits<std::uint32_t>::max();

  void insert(std::vector<Agent>& agents, std::uint32_t id, std::uint32_t cell) {
    agents[id].next = heads_[cell];
    heads_[cell] = id;
  }

  void remove(std::vector<Agent>& agents, std::uint32_t id, std::uint32_t cell) {
    std::uint32_t* link = &heads_[cell];
    while (*link != id) link = &agents[*link].next;
    *link = agents[id].next;
  }

  // Calls visit(id, cell) for every agent; for tests.
  template <class Visit>
  void for_each(const std::vector<Agent>& agents, const Visit& visit) const {
    for (std::uint32_t cell = 0; cell < heads_.size(); ++cell) {
      for (std::uint32_t id = heads_[cell]; id != NONE; id = agents[id].next) visit(id, cell);
    }
  }

 protected:
  explicit CellLists(std::size_t cells = 0) : heads_(cells, NONE) {}

  std::vector<std::uint32_t> heads_;  // the first agent of each cell
};

}  // namespace metropolis
