// An index of agents by graph node, searched breadth-first from a node.
//
// The counterpart of CellGrid in the plane. A search visits only the nodes within its radius,
// whatever the number of agents.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "metropolis/cell_lists.hpp"
#include "metropolis/metric.hpp"
#include "metropolis/types.hpp"

namespace metropolis {

// Agent is as for CellLists; the cells are the nodes.
template <class Agent>
class NodeIndex : public CellLists<Agent> {
 public:
  explicit NodeIndex(std::shared_ptr<const Hops::Graph> graph)
      : CellLists<Agent>(graph->nodes()), graph_(std::move(graph)), reached_(graph_->nodes(), 0) {}

  std::uint32_t cell(Position p) const { return static_cast<std::uint32_t>(p.x); }

  // Visits every agent within `radius` hops of p for which `matters(step, hops)` holds.
  template <class Matters, class Visit>
  void search(const std::vector<Agent>& agents, Position p, double radius, const Matters& matters,
              const Visit& visit) {
    ++search_;
    queue_.assign(1, cell(p));
    reached_[queue_[0]] = search_;
    std::size_t ring_end = 1;
    double hops = 0;
    for (std::size_t i = 0; i < queue_.size(); ++i) {
      if (i == ring_end) {
        ring_end = queue_.size();
        ++hops;
      }
      const std::uint32_t node = queue_[i];
      for (std::uint32_t id = this->heads_[node]; id != this->NONE; id = agents[id].next) {
        if (matters(agents[id].step, hops)) visit(id);
      }
      if (hops + 1 > radius) continue;
      for (const std::int32_t neighbour : graph_->neighbours_of(node)) {
        const auto other = static_cast<std::uint32_t>(neighbour);
        if (reached_[other] == search_) continue;
        reached_[other] = search_;
        queue_.push_back(other);
      }
    }
  }

  // As CellGrid::step_bound; trivial, because no minimum steps are kept.
  Step step_bound(std::uint32_t) const { return std::numeric_limits<Step>::min(); }

 private:
  std::shared_ptr<const Hops::Graph> graph_;
  std::vector<std::uint64_t> reached_;  // number of the last search that reached each node
  std::uint64_t search_ = 0;            // number of the latest search
  std::vector<std::uint32_t> queue_;
};

}  // namespace metropolis
