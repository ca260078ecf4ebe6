// The controller's interface: events in, commands out. No clock, thread, socket or randomness.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "metropolis/types.hpp"

namespace metropolis {

// Commands of one call: clusters to run, in order of (step, smallest agent). Flat, reusable
// storage.
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
  std::span<const AgentId> members(const Cluster& cluster) const {
    return {agents.data() + cluster.begin, agents.data() + cluster.end};
  }
};

inline constexpr AgentId NOBODY = -1;

class Controller {
 public:
  virtual ~Controller() = default;

  // Appends the clusters that can run at the very beginning. Called once; throws
  // std::invalid_argument the second time.
  virtual void start(Dispatches& out) = 0;

  // One cluster has committed its step: `agents` are exactly the members of a dispatched cluster
  // and `positions` is where they stand now. Appends the clusters that can run because of it.
  // Throws std::invalid_argument on an agent that is not running.
  virtual void commit(std::span<const AgentId> agents, std::span<const Position> positions,
                      Dispatches& out) = 0;

  // Whom each agent waits for, NOBODY where it runs or has finished; to be asked after start().
  // metropolis/controller/base.py says what an agent shows that waits with a companion.
  virtual std::vector<AgentId> blocked_by() const = 0;

  // The step up to which an agent that runs alone can go on alone, whatever others do: nobody will
  // block it or be coupled with it before. 0 where that is not known; to be asked after start().
  // Throws std::invalid_argument when there is no such agent.
  virtual Step clear_until(AgentId agent) = 0;

  // How many agents there are.
  virtual std::size_t agents() const = 0;

  // The step before which all stop.
  virtual Step target() const = 0;

  // The smallest step any agent still has to run; the target step when all have finished.
  virtual Step floor() const = 0;

  // Checks every invariant; throws std::logic_error that names the agents. For tests: may be slow.
  virtual void validate() const = 0;
};

}  // namespace metropolis
