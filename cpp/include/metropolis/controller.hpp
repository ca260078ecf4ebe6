// The controller's interface: events in, commands out. No clock, thread, socket or randomness.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "metropolis/types.hpp"

namespace metropolis {

// Commands of one call: clusters to run, by (step, smallest agent). Flat, reusable storage.
struct Dispatches {
  struct Cluster {
    Step step;
    std::uint32_t begin;  // the members are agents[begin, end), ascending
    std::uint32_t end;
  };
  std::vector<AgentId> agents;
  std::vector<Cluster> clusters;

  void clear() {
    agents.clear();
    clusters.clear();
  }
  // Sorts the clusters from index `first` on.
  void sort(std::size_t first) {
    if (clusters.size() - first < 2) return;
    std::sort(clusters.begin() + static_cast<std::ptrdiff_t>(first), clusters.end(),
              [&](const Cluster& a, const Cluster& b) {
                return a.step != b.step ? a.step < b.step : agents[a.begin] < agents[b.begin];
              });
  }
  std::span<const AgentId> members(const Cluster& cluster) const {
    return {agents.data() + cluster.begin, agents.data() + cluster.end};
  }
};

inline constexpr AgentId NO_AGENT = -1;

class Controller {
 public:
  virtual ~Controller() = default;

  // Appends the clusters that can run initially. Throws std::invalid_argument on a second call.
  virtual void start(Dispatches& out) = 0;

  // A cluster has committed its step: `agents` are exactly the members of a dispatched cluster,
  // `positions` are their new positions. Appends the clusters that this unblocks. Throws
  // std::invalid_argument on an agent that is not running.
  virtual void commit(std::span<const AgentId> agents, std::span<const Position> positions,
                      Dispatches& out) = 0;

  // The agent that each agent waits for; NO_AGENT if it runs or has finished. Call it after
  // start(). metropolis/controller/base.py specifies the value for an agent that waits with a
  // companion.
  virtual std::vector<AgentId> blocked_by() const = 0;

  // The step up to which an agent that runs alone can continue alone: before it, no agent blocks it
  // or is coupled with it, whatever others do. 0 if unknown. Call it after start(). Throws
  // std::invalid_argument on an unknown agent.
  virtual Step clear_until(AgentId agent) = 0;

  // The number of agents.
  virtual std::size_t agents() const = 0;

  // The step before which all agents stop.
  virtual Step target() const = 0;

  // The smallest step that any agent still has to run; the target step when all have finished.
  virtual Step floor() const = 0;

  // Checks every invariant; throws std::logic_error that names the agents. May be slow; for tests.
  virtual void validate() const = 0;
};

}  // namespace metropolis
