// The agents of a SpatialController: their steps, positions and states, and what blocks them.
//
// Slack, witness and the other terms are those of spatial_controller.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "metropolis/cell_grid.hpp"
#include "metropolis/controller.hpp"
#include "metropolis/node_index.hpp"
#include "metropolis/rule.hpp"
#include "metropolis/types.hpp"

namespace metropolis {

// Distances on the torus are rounded; agents within this distance of a bound are checked exactly.
// Moves of a velocity that is no whole number are rounded, too, by less than this.
inline constexpr double TOLERANCE = 1e-5;

template <class M>
class SpatialAgents : public Controller {
 public:
  std::vector<AgentId> blocked_by() const override {
    std::vector<AgentId> edges(agents_.size(), NO_AGENT);
    for (std::size_t i = 0; i < edges.size(); ++i) {
      std::uint32_t id = internal_[i];
      while (agents_[id].state == CLEAR) id = links_[id].next;
      if (id != internal_[i]) {
        edges[i] = links_[id].external;
      } else if (agents_[id].state == BLOCKED) {
        edges[i] = links_[agents_[id].critical].external;
      }
    }
    return edges;
  }

  Step floor() const override { return agents_.empty() ? target_ : floor_; }
  std::size_t agents() const override { return agents_.size(); }
  Step target() const override { return target_; }

  void validate() const override {
    validate_cells();
    bool running = agents_.empty() || floor_ == target_;
    Step smallest = target_;
    for (std::uint32_t id = 0; id < agents_.size(); ++id) {
      running |= agents_[id].state == RUNNING;
      smallest = std::min(smallest, agents_[id].step);
      validate_agent(id);
    }
    if (smallest != floor_ && !agents_.empty()) fail("the floor is wrong");
    if (!running) fail("no agent runs and not all have finished");
  }

 protected:
  SpatialAgents(const Rule& rule, const M& metric, double max_velocity,
                std::span<const Position> positions, std::span<const Step> steps, Step target_step)
      : rule_(rule),
        metric_(metric),
        velocity_(max_velocity),
        slack_min_(1e-3 * max_velocity + 1e-6),
        target_(target_step),
        floor_(steps.empty() ? 0 : std::ranges::min(steps)),
        grid_(index_for(positions)),
        agents_(positions.size()),
        links_(positions.size()),
        internal_(positions.size()),
        population_(steps.empty() ? 1 : index(std::ranges::max(steps) - floor_) + 1) {
    std::vector<std::uint32_t> cells(positions.size());
    for (std::size_t i = 0; i < cells.size(); ++i) cells[i] = grid_.cell(positions[i]);
    std::vector<AgentId> order(positions.size());
    std::iota(order.begin(), order.end(), 0);
    // Neighbours in the world are neighbours in memory.
    std::ranges::stable_sort(order, {}, [&](AgentId agent) { return cells[index(agent)]; });
    for (std::uint32_t id = 0; id < agents_.size(); ++id) {
      const std::size_t agent = index(order[id]);
      links_[id].external = order[id];
      internal_[agent] = id;
      agents_[id].position = positions[agent];
      agents_[id].step = steps.empty() ? 0 : steps[agent];
      agents_[id].state = agents_[id].step == target_ ? FINISHED : UNSETTLED;
      ++population_[index(agents_[id].step - floor_)];
      grid_.insert(agents_, id, cells[agent]);
    }
  }

  enum State : std::uint32_t {
    RUNNING,
    UNSETTLED,  // waiting; not examined since its last commit, or since a jump
    BLOCKED,    // waiting in the list of its witness
    CLEAR,      // not blocked; waits for members of its cluster that are not clear
    GATHERED,   // clear, and part of the cluster that dispatch_cluster() collects
    FINISHED
  };
  static constexpr std::uint32_t NONE = (1u << 29) - 1;  // fills the bits of Agent::critical

  struct Agent {
    Position position;
    Step step = 0;
    std::uint32_t next = NONE;  // in its cell; owned by the index
    std::uint32_t critical : 29 = NONE;
    std::uint32_t state : 3 = UNSETTLED;
    float slack = 0;  // towards all agents but the critical one
  };
  struct Links {
    std::uint32_t first_waiter = NONE;
    // Blocked: the next waiter in the list of its witness; running: the next member of its
    // cluster, a ring; clear: a member that was not clear.
    std::uint32_t next = NONE;
    AgentId external = 0;  // the id in events and commands
  };

  using Index = std::conditional_t<M::PLANAR, CellGrid<Agent>, NodeIndex<Agent>>;

  static std::size_t index(AgentId agent) { return static_cast<std::size_t>(agent); }
  Index index_for(std::span<const Position> positions) const {
    if (positions.size() >= NONE) throw std::invalid_argument("there are too many agents");
    if constexpr (M::PLANAR) {
      return {positions, std::max({rule_.block_radius, velocity_, 1e-6})};
    } else {
      return Index(metric_.graph());
    }
  }

  std::vector<AgentId> cluster_of(AgentId agent) const {
    std::vector<AgentId> cluster;
    const std::uint32_t first = internal_[index(agent)];
    std::uint32_t id = first;
    do {
      cluster.push_back(links_[id].external);
      id = links_[id].next;
    } while (id != first);
    std::ranges::sort(cluster);
    return cluster;
  }

  void advance(std::uint32_t id, Position position) {
    Agent& agent = agents_[id];
    ++agent.step;
    agent.state = agent.step == target_ ? FINISHED : UNSETTLED;
    if (position != agent.position) {
      agent.slack -= static_cast<float>(metric_.distance(agent.position, position));
      const std::uint32_t from = grid_.cell(agent.position);
      const std::uint32_t to = grid_.cell(position);
      agent.position = position;
      if (from != to) {
        grid_.remove(agents_, id, from);
        grid_.insert(agents_, id, to);
      }
    }
    agent.slack -= static_cast<float>(velocity_);
    const auto offset = static_cast<std::size_t>(agent.step - floor_);
    if (offset == population_.size()) population_.push_back(0);
    --population_[offset - 1];
    ++population_[offset];
    if (population_.front() == 0) {
      const auto populated =
          std::ranges::find_if(population_, [](auto count) { return count > 0; });
      floor_ += static_cast<Step>(populated - population_.begin());
      population_.erase(population_.begin(), populated);
    }
  }

  bool blocks(const Agent& witness, const Agent& agent) const {
    const Step k = agent.step - witness.step;
    if (k > 0) return within(agent, witness, rule_.block_radius, k * velocity_);
    return k == 0 && witness.state == RUNNING && coupled(agent, witness);
  }

  bool coupled(const Agent& a, const Agent& b) const {
    return within(a, b, rule_.couple_radius, 0);
  }

  bool within(const Agent& p, const Agent& q, double radius, double reach) const {
    return metric_.within(p.position, q.position, radius, reach);
  }

  // The slack towards an agent that is k steps behind at `distance`.
  double slack_towards(Step k, double distance) const {
    const double beyond = distance - rule_.block_radius;
    return (k >= 0 ? beyond : std::max(0.0, beyond)) - k * velocity_;
  }

  // The largest distance of an agent towards which the slack is at most `slack`.
  double search_radius(const Agent& agent, double slack) const {
    return rule_.block_radius + (agent.step - floor_) * velocity_ + slack + TOLERANCE;
  }

  // Whether agents may stand closer than the rule allows, because one of them has jumped.
  bool after_jump() const { return floor_ <= jump_step_; }

  static void fail(const std::string& what) { throw std::logic_error(what); }
  std::string name(std::uint32_t id) const {
    return "agent " + std::to_string(links_[id].external);
  }

  void validate_cells() const {
    std::size_t seen = 0;
    grid_.for_each(agents_, [&](std::uint32_t id, std::uint32_t cell) {
      ++seen;
      if (grid_.cell(agents_[id].position) != cell) fail(name(id) + " is in a wrong cell");
      if (grid_.step_bound(cell) > agents_[id].step) {
        fail(name(id) + " is behind its cell's minimum");
      }
    });
    if (seen != agents_.size()) fail("an agent is in no cell");
  }

  void validate_agent(std::uint32_t a) const {
    const Agent& agent = agents_[a];
    if ((agent.state == FINISHED) != (agent.step == target_)) fail(name(a) + " is not finished");
    if (agent.state == UNSETTLED) fail(name(a) + " is neither dispatched nor waiting");
    if (agent.state == BLOCKED && !blocks(agents_[agent.critical], agent)) {
      fail(name(a) + " waits for " + name(agent.critical) + ", which does not block it");
    }
    if (after_jump()) return;
    bool has_companion = false;
    for (std::uint32_t b = 0; b < agents_.size(); ++b) {
      if (a == b) continue;
      validate_pair(a, b);
      has_companion |= agents_[b].step == agent.step && agents_[b].state == BLOCKED;
    }
    if (agent.state == CLEAR && !has_companion) fail(name(a) + " waits for no agent");
  }

  void validate_pair(std::uint32_t a, std::uint32_t b) const {
    const Agent &agent = agents_[a], &other = agents_[b];
    const Step k = agent.step - other.step;
    const bool is_coupled = k == 0 && coupled(agent, other);
    const bool is_secure = agent.slack > slack_min_ && agent.state != FINISHED;
    if (is_secure && b != agent.critical && (is_coupled || blocks(other, agent))) {
      fail(name(a) + " overlooks " + name(b));
    }
    const bool is_ready = agent.state == RUNNING || agent.state == CLEAR;
    if (is_ready && k > 0 && blocks(other, agent)) fail(name(b) + " blocks " + name(a));
    if (agent.state == RUNNING && is_coupled) {
      const auto cluster = cluster_of(links_[a].external);
      if (other.state != RUNNING ||
          std::ranges::find(cluster, links_[b].external) == cluster.end()) {
        fail(name(a) + " and " + name(b) + " are coupled but run apart");
      }
    }
    if (k > 0 && is_too_close(agent, other)) {
      fail(name(a) + " is ahead of " + name(b) + " and too close to it");
    }
  }

  // Whether an agent that is k > 0 steps ahead of another is closer to it than the rule allows. At
  // k - 1 steps ahead it was not blocked (k = 1: not coupled); it moved at most v since.
  bool is_too_close(const Agent& agent, const Agent& other) const {
    const Step k = agent.step - other.step;
    const double moved = velocity_ + (std::floor(velocity_) == velocity_ ? 0 : TOLERANCE);
    const double radius = (k == 1 ? rule_.couple_radius : rule_.block_radius) - moved;
    return M::UNIFORM ? within(agent, other, radius, (k - 1) * velocity_)
                      : metric_.perceives(agent.position, other.position, radius);
  }

  Rule rule_;
  M metric_;
  double velocity_;
  double slack_min_;  // a smaller slack may be a rounding error of floats: search instead
  Step target_, floor_ = 0;
  Step jump_step_ = -1;  // highest step at the last jump
  Index grid_;
  std::vector<Agent> agents_;  // by internal id, in Morton order of their start
  std::vector<Links> links_;
  std::vector<std::uint32_t> internal_;   // the internal id of each agent
  std::deque<std::uint32_t> population_;  // number of agents at step floor_ + i
};

}  // namespace metropolis
