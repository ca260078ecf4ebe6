// The controller of a rule with finite radii.
//
// Rules (metropolis/controller/reference.py is the specification)
//  1. An agent is running, waiting or finished. `position` is where it stands when `step` begins.
//  2. a is blocked by b iff k = s_a - s_b > 0 and within(p_a, p_b, block_radius, k * v).
//  3. Two agents of one step are coupled iff within(p_a, p_b, couple_radius, 0).
//  4. A connected component of coupled waiting agents is a cluster. It is dispatched once no member
//     is blocked, and none is coupled with a running agent (possible only after a jump).
//  5. A commit names exactly the members of one dispatched cluster; each has moved at most v.
//
// Theory of operation
//  6. The *slack* of a towards b is a's distance from any interaction with b:
//        k >= 0: distance - block_radius - k * v
//        k < 0: max(0, distance - block_radius) - k * v
//     A step of a that moves it by m reduces the slack by at most v + m. A commit of b does not
//     reduce it: b gains v by the step and moves at most v. While the slack is positive, b neither
//     blocks a nor is coupled with it.
//  7. A search finds the agent with the smallest slack (*critical*) and the slack towards all the
//     others. While that is positive, only the critical agent is checked, without a search: one
//     search serves several steps of a, blocked or not.
//  8. A blocked agent waits in the list of one blocker, its *witness*; it is checked again when
//     the witness commits. Once clear it stays clear (no agent behind can come close enough), so a
//     cluster is dispatched by the last of its members to become clear.
//  9. Searches prune with lower bounds of the slack (cell_grid.hpp), so their radius depends on the
//     steps in each region, not on the largest skew anywhere.
// 10. *Lookahead*: an agent that runs alone, whose slack towards all others exceeds 2v times a
//     number of steps, is clear for that many more steps.
// 11. A jump invalidates the slack of all agents: it is reset, and all of them are settled again.
//     Until every agent has passed the highest step at the jump, agents may stand closer than the
//     rule allows: there is no lookahead, and validate() does not compare positions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "metropolis/checks.hpp"
#include "metropolis/controller.hpp"
#include "metropolis/controllers.hpp"
#include "metropolis/rule.hpp"
#include "metropolis/types.hpp"
#include "spatial_agents.hpp"

namespace metropolis {

// Steps of a moving agent that one search serves. A larger value searches less often, but further.
inline constexpr double STEPS_PER_SEARCH = 4;

// Maximum lookahead beyond the current step. A larger value makes the search read more.
inline constexpr double LOOKAHEAD_STEPS = 7;

template <class M>
class SpatialController final : public SpatialAgents<M> {
 public:
  SpatialController(const Rule& rule, const M& metric, double max_velocity,
                    std::span<const Position> positions, std::span<const Step> steps,
                    Step target_step, bool check_moves)
      : Base(rule, metric, max_velocity, positions, steps, target_step),
        slack_max_(max_velocity > 0 ? 2 * STEPS_PER_SEARCH * max_velocity : 1),
        check_moves_(check_moves) {}

  void start(Dispatches& out) override {
    check_first_start(started_);
    const std::size_t first = out.clusters.size();
    for (const std::uint32_t id : internal_) {
      if (agents_[id].state == UNSETTLED) settle(id, out);
    }
    out.sort(first);
  }

  void commit(std::span<const AgentId> agents, std::span<const Position> positions,
              Dispatches& out) override {
    const std::size_t first = out.clusters.size();
    const bool jumped = check(agents, positions);
    for (std::size_t i = 0; i < agents.size(); ++i) {
      advance(internal_[index(agents[i])], positions[i]);
    }
    if (jumped) {
      reset_after_jump();
      for (const std::uint32_t id : internal_) {
        if (agents_[id].state == UNSETTLED) settle(id, out);
      }
    } else {
      for (const AgentId agent : agents) {
        const std::uint32_t id = internal_[index(agent)];
        if (agents_[id].state == UNSETTLED) settle(id, out);
      }
      for (const AgentId agent : agents) wake(internal_[index(agent)], out);
    }
    out.sort(first);
  }

  Step clear_until(AgentId external) override {
    check_agent(external, agents_.size());
    const std::uint32_t id = internal_[index(external)];
    const Agent& agent = agents_[id];
    if (agent.state != RUNNING || links_[id].next != id || after_jump()) return 0;
    const double loss = 2 * velocity_;  // maximum loss of slack per step
    double least = std::max(loss, 1.0) * LOOKAHEAD_STEPS + 2 * slack_min_;
    const auto matters = [&](Step other, double distance) {
      return slack_towards(agent.step - other, distance) < least + TOLERANCE;
    };
    const auto visit = [&](std::uint32_t other) {
      if (other == id) return;
      const Agent& b = agents_[other];
      const double distance = metric_.distance(agent.position, b.position);
      least = std::min(least, slack_towards(agent.step - b.step, distance));
    };
    const double radius = search_radius(agent, least);
    if (radius >= 0) grid_.search(agents_, agent.position, radius, matters, visit);
    double more = 0;  // steps beyond the current one
    if (least > slack_min_) {
      more = loss > 0 ? std::floor((least - slack_min_) / loss) : LOOKAHEAD_STEPS;
    }
    return std::min(target_, agent.step + 1 + static_cast<Step>(std::min(more, LOOKAHEAD_STEPS)));
  }

 private:
  using Base = SpatialAgents<M>;
  using Base::advance, Base::after_jump, Base::blocks, Base::cluster_of, Base::coupled, Base::index;
  using Base::agents_, Base::floor_, Base::grid_, Base::internal_, Base::jump_step_, Base::links_;
  using Base::metric_, Base::rule_, Base::slack_min_, Base::target_, Base::velocity_;
  using Base::RUNNING, Base::UNSETTLED, Base::BLOCKED, Base::CLEAR, Base::GATHERED, Base::NONE;
  using Base::search_radius, Base::slack_towards;
  using typename Base::Agent;
  using typename Base::Links;

  // Checks the commit before any change. True if an agent jumped.
  bool check(std::span<const AgentId> agents, std::span<const Position> positions) const {
    check_commit(agents, positions, agents_.size(),
                 [&](AgentId agent) { return agents_[internal_[index(agent)]].state == RUNNING; });
    bool same = std::ranges::is_sorted(agents, std::ranges::less_equal{});
    for (std::size_t i = 0; i < agents.size(); ++i) {
      const AgentId following = agents[i + 1 < agents.size() ? i + 1 : 0];
      same &= links_[internal_[index(agents[i])]].next == internal_[index(following)];
    }
    if (!same) throw std::invalid_argument(not_a_cluster(cluster_of(agents[0]), agents));
    bool jumped = false;
    for (std::size_t i = 0; i < agents.size(); ++i) {
      const Agent& agent = agents_[internal_[index(agents[i])]];
      jumped |= check_move(metric_, agents[i], agent.position, positions[i], agent.step, velocity_,
                           check_moves_);
    }
    return jumped;
  }

  // Dispatches an unsettled agent with its cluster if it can run; else makes it wait.
  void settle(std::uint32_t id, Dispatches& out) {
    Agent& agent = agents_[id];
    const Agent* critical = agent.critical == NONE ? nullptr : &agents_[agent.critical];
    if (critical != nullptr && blocks(*critical, agent)) {
      wait_for(id, agent.critical);
    } else if (agent.slack > slack_min_) {
      mark_clear(id,
                 critical != nullptr && critical->step == agent.step && coupled(agent, *critical),
                 out);
    } else {
      examine(id, out);
    }
  }

  // The witness has committed: rechecks the agents that wait for it.
  void wake(std::uint32_t witness, Dispatches& out) {
    std::uint32_t waiter = std::exchange(links_[witness].first_waiter, NONE);
    while (waiter != NONE) {
      const std::uint32_t following = links_[waiter].next;
      if (blocks(agents_[witness], agents_[waiter])) {
        wait_for(waiter, witness);
      } else {
        settle(waiter, out);
      }
      waiter = following;
    }
  }

  void wait_for(std::uint32_t id, std::uint32_t witness) {
    agents_[id].state = BLOCKED;
    agents_[id].critical = witness & NONE;
    links_[id].next = std::exchange(links_[witness].first_waiter, id);
  }

  // Finds the critical agent, blockers first, and the slack towards all others.
  void examine(std::uint32_t id, Dispatches& out) {
    Agent& agent = agents_[id];
    // Slack towards the critical agent, and the smallest towards the others.
    double critical_slack = slack_max_, slack = slack_max_;
    std::uint32_t critical = NONE;
    bool blocked = false, coupled_with_another = false;
    // Once blocked, with no slack towards the others, only a smaller critical slack matters.
    const auto matters = [&](Step step, double distance) {
      const double least = slack_towards(agent.step - step, distance);
      return least < (blocked && slack <= 0 ? critical_slack : slack) + TOLERANCE;
    };
    const auto visit = [&](std::uint32_t other) {
      if (other == id) return;
      const Agent& b = agents_[other];
      const Step k = agent.step - b.step;
      double towards = slack_towards(k, metric_.distance(agent.position, b.position));
      const bool blocks_too = towards <= TOLERANCE && blocks(b, agent);
      if (!blocks_too) {
        coupled_with_another |= k == 0 && towards <= TOLERANCE && coupled(agent, b);
        towards = std::max(towards, 0.0);
      }
      if (towards < critical_slack || (blocks_too && !blocked)) {
        slack = critical_slack;
        critical_slack = blocks_too ? std::min(towards, 0.0) : towards;
        critical = other;
        blocked |= blocks_too;
      } else {
        slack = std::min(slack, towards);
      }
    };
    const double radius = search_radius(agent, slack_max_);
    if (radius >= 0) grid_.search(agents_, agent.position, radius, matters, visit);
    agent.critical = critical & NONE;
    agent.slack = static_cast<float>(slack);
    if (blocked) {
      wait_for(id, critical);
    } else {
      mark_clear(id, coupled_with_another, out);
    }
  }

  // The agent is clear: dispatches it, alone or with its cluster if all members are clear.
  void mark_clear(std::uint32_t id, bool coupled_with_another, Dispatches& out) {
    agents_[id].state = CLEAR;
    if (coupled_with_another) {
      dispatch_cluster(id, out);
    } else {
      dispatch({&id, 1}, out);
    }
  }

  // Dispatches the cluster of a clear agent if all members are clear.
  void dispatch_cluster(std::uint32_t id, Dispatches& out) {
    gathered_.assign(1, id);
    agents_[id].state = GATHERED;
    std::uint32_t not_clear = NONE;  // a member that is not clear
    for (std::size_t i = 0; i < gathered_.size() && not_clear == NONE; ++i) {
      const Agent& agent = agents_[gathered_[i]];
      const auto matters = [&](Step step, double distance) {
        return not_clear == NONE && step <= agent.step &&
               distance <= rule_.couple_radius + TOLERANCE;
      };
      const auto visit = [&](std::uint32_t other) {
        Agent& b = agents_[other];
        if (b.step != agent.step || b.state == RUNNING || b.state == GATHERED) return;
        if (!coupled(agent, b)) return;
        if (b.state == CLEAR) {
          b.state = GATHERED;
          gathered_.push_back(other);
        } else {
          not_clear = other;
        }
      };
      const double radius = rule_.couple_radius + TOLERANCE;
      grid_.search(agents_, agent.position, radius, matters, visit);
    }
    if (not_clear == NONE) return dispatch(gathered_, out);
    for (const std::uint32_t member : gathered_) {
      agents_[member].state = CLEAR;
      links_[member].next = not_clear;
    }
  }

  void dispatch(std::span<const std::uint32_t> members, Dispatches& out) {
    const auto begin = static_cast<std::uint32_t>(out.agents.size());
    for (const std::uint32_t id : members) {
      agents_[id].state = RUNNING;
      out.agents.push_back(links_[id].external);
    }
    const std::span cluster(out.agents.begin() + begin, out.agents.end());
    if (cluster.size() > 1) std::ranges::sort(cluster);
    for (std::size_t i = 0; i < cluster.size(); ++i) {
      const AgentId following = cluster[i + 1 < cluster.size() ? i + 1 : 0];
      links_[internal_[index(cluster[i])]].next = internal_[index(following)];
    }
    out.clusters.push_back(
        {agents_[members[0]].step, begin, static_cast<std::uint32_t>(out.agents.size())});
  }

  // Resets the slack of all agents, and notes the steps that the jump may affect.
  void reset_after_jump() {
    for (Links& links : links_) links.first_waiter = NONE;
    for (Agent& agent : agents_) {
      agent.slack = 0;
      agent.critical = NONE;
      if (agent.state == BLOCKED || agent.state == CLEAR) agent.state = UNSETTLED;
    }
    for (const Agent& agent : agents_) jump_step_ = std::max(jump_step_, agent.step);
  }

  double slack_max_;  // a search looks no further
  bool check_moves_, started_ = false;
  std::vector<std::uint32_t> gathered_;  // members of the cluster being collected
};

}  // namespace metropolis
