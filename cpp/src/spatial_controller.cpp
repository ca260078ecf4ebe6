#include "spatial_controller.hpp"

#include <stdexcept>
#include <string>

namespace metropolis {

template <class M>
std::vector<AgentId> SpatialController<M>::blocked_by() const {
  std::vector<AgentId> edges(agents_.size(), NOBODY);
  for (std::size_t i = 0; i < edges.size(); ++i) {
    std::uint32_t id = internal_[i];
    // A clear member links to another one that was not clear.
    while (agents_[id].state == CLEAR) id = links_[id].next;
    if (id != internal_[i]) {
      edges[i] = links_[id].external;
    } else if (agents_[id].state == BLOCKED) {
      edges[i] = links_[agents_[id].critical].external;
    }
  }
  return edges;
}

template <class M>
std::vector<AgentId> SpatialController<M>::cluster_of(AgentId agent) const {
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

template <class M>
Step SpatialController<M>::clear_until(AgentId external) {
  check_agent(external, agents_.size());
  const std::uint32_t id = internal_[index(external)];
  const Agent& agent = agents_[id];
  if (agent.state != RUNNING || links_[id].next != id || jumped_) return 0;
  const double step = 2 * velocity_;  // largest loss of slack per step
  double least = std::max(step, 1.0) * LOOKAHEAD_STEPS + 2 * slack_min_;
  const auto matters = [&](Step other, double distance) {
    return slack_towards(agent.step - other, distance) < least + TOLERANCE;
  };
  const auto visit = [&](std::uint32_t other) {
    if (other == id) return;
    const Agent& b = agents_[other];
    const double distance = metric_.distance(agent.position, b.position);
    least = std::min(least, slack_towards(agent.step - b.step, distance));
  };
  const double radius = reach(agent, least);
  if (radius >= 0) grid_.search(agents_, agent.position, radius, matters, visit);
  double more = 0;
  if (least > slack_min_) {
    more = step > 0 ? std::floor((least - slack_min_) / step) : LOOKAHEAD_STEPS;
  }
  return std::min(target_, agent.step + 1 + static_cast<Step>(std::min(more, LOOKAHEAD_STEPS)));
}

template <class M>
void SpatialController<M>::validate() const {
  const auto name = [&](std::uint32_t id) {
    return "agent " + std::to_string(links_[id].external);
  };
  const auto fail = [](const std::string& what) { throw std::logic_error(what); };
  std::size_t seen = 0;
  grid_.each(agents_, [&](std::uint32_t id, std::uint32_t cell) {
    ++seen;
    if (grid_.cell(agents_[id].position) != cell) fail(name(id) + " is in a wrong cell");
    if (grid_.bound(cell) > agents_[id].step) fail(name(id) + " is behind its cell's minimum");
  });
  if (seen != agents_.size()) fail("an agent is in no cell");
  bool running = agents_.empty() || floor_ == target_;
  Step smallest = target_;
  for (std::uint32_t a = 0; a < agents_.size(); ++a) {
    const Agent& agent = agents_[a];
    running |= agent.state == RUNNING;
    smallest = std::min(smallest, agent.step);
    if ((agent.state == FINISHED) != (agent.step == target_)) fail(name(a) + " is not finished");
    if (agent.state == UNSETTLED) fail(name(a) + " has been forgotten");
    if (agent.state == BLOCKED && !blocks(agents_[agent.critical], agent)) {
      fail(name(a) + " waits for " + name(agent.critical) + ", which does not block it");
    }
    bool companion = false;
    const bool secure = agent.slack > slack_min_ && agent.state != FINISHED;
    for (std::uint32_t b = 0; b < agents_.size(); ++b) {
      const Agent& other = agents_[b];
      const Step k = agent.step - other.step;
      if (a == b || jumped_) continue;
      const bool matters = blocks(other, agent) || (k == 0 && coupled(agent, other));
      if (secure && b != agent.critical && matters) fail(name(a) + " overlooks " + name(b));
      const bool ready = agent.state == RUNNING || agent.state == CLEAR;
      if (ready && k > 0 && blocks(other, agent)) fail(name(b) + " blocks " + name(a));
      if (agent.state == RUNNING && k == 0 && coupled(agent, other)) {
        const auto cluster = cluster_of(links_[a].external);
        if (other.state != RUNNING ||
            std::ranges::find(cluster, links_[b].external) == cluster.end()) {
          fail(name(a) + " and " + name(b) + " are coupled but run apart");
        }
      }
      companion |= k == 0 && other.state == BLOCKED;
      // At k - 1 steps ahead it was not blocked (k = 1: not coupled); it moved at most v since.
      const double radius = (k == 1 ? rule_.couple_radius : rule_.block_radius) - velocity_;
      const bool too_close = M::UNIFORM ? within(agent, other, radius, (k - 1) * velocity_)
                                        : metric_.perceives(agent.position, other.position, radius);
      if (k > 0 && too_close) {
        fail(name(a) + " is ahead of " + name(b) + " and too close to it");
      }
    }
    if (agent.state == CLEAR && !companion && !jumped_) fail(name(a) + " waits for no agent");
  }
  if (smallest != floor_ && !agents_.empty()) fail("the floor is wrong");
  if (!running) fail("no agent runs and not all have finished");
}

std::unique_ptr<Controller> make_controller(const Rule& rule, const Metric& metric,
                                            double max_velocity,
                                            std::span<const Position> positions,
                                            std::span<const Step> steps, Step target_step,
                                            bool check_moves) {
  check_start(rule, metric, max_velocity, positions, steps, target_step);
  if (std::isinf(rule.couple_radius) && rule.couple_radius > 0) {
    return make_barrier_controller(metric, max_velocity, positions, steps.empty() ? 0 : steps[0],
                                   target_step, check_moves);
  }
  return std::visit(
      [&](const auto& chosen) -> std::unique_ptr<Controller> {
        using M = std::decay_t<decltype(chosen)>;
        return std::make_unique<SpatialController<M>>(rule, chosen, max_velocity, positions, steps,
                                                      target_step, check_moves);
      },
      metric);
}

}  // namespace metropolis
