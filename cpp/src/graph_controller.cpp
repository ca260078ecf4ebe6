// Dependencies as an explicit list instead of a rule; every cluster is a single agent.
//
// A blocked agent waits in the list of one agent that is behind, and checks its further needs when
// that one commits. An agent at the floor needs no step above it: no deadlock.
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "metropolis/checks.hpp"
#include "metropolis/controllers.hpp"

namespace metropolis {

namespace {

// `agent` has committed every step below `step`.
struct Need {
  AgentId agent;
  Step step;
};

class GraphController final : public Controller {
 public:
  // With i = step * agents + agent, the agent may run the step once needs[offsets[i], offsets[i+1])
  // hold; none is of a step above.
  GraphController(AgentId agents, Step steps, std::vector<std::int64_t> offsets,
                  std::vector<Need> needs)
      : agents_(static_cast<std::size_t>(agents)),
        target_(steps),
        offsets_(std::move(offsets)),
        needs_(std::move(needs)),
        population_(static_cast<std::size_t>(steps) + 1, 0) {
    population_[0] = agents;
    advance_floor();
  }

  void start(Dispatches& out) override {
    check_first_start(started_);
    const std::size_t first = out.clusters.size();
    if (target_ > 0) {
      for (AgentId agent = 0; agent < static_cast<AgentId>(agents_.size()); ++agent) {
        dispatch_or_wait(agent, out);
      }
    }
    out.sort(first);
  }

  void commit(std::span<const AgentId> agents, std::span<const Position> positions,
              Dispatches& out) override {
    check_commit(agents, positions, agents_.size(),
                 [&](AgentId agent) { return at(agent).running; });
    if (agents.size() != 1) throw std::invalid_argument(not_a_cluster(agents.first(1), agents));
    const std::size_t first = out.clusters.size();
    Agent& agent = at(agents[0]);
    agent.running = false;
    --population_[static_cast<std::size_t>(agent.step)];
    ++agent.step;
    ++population_[static_cast<std::size_t>(agent.step)];
    advance_floor();
    if (agent.step < target_) dispatch_or_wait(agents[0], out);
    AgentId waiter = std::exchange(agent.first_waiter, NO_AGENT);
    while (waiter != NO_AGENT) {
      const AgentId following = at(waiter).next_waiter;
      dispatch_or_wait(waiter, out);
      waiter = following;
    }
    out.sort(first);
  }

  std::vector<AgentId> blocked_by() const override {
    std::vector<AgentId> edges(agents_.size(), NO_AGENT);
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const bool waits = !agents_[i].running && agents_[i].step < target_;
      const Need* need = waits ? unmet(static_cast<AgentId>(i)) : nullptr;
      if (need != nullptr) edges[i] = need->agent;
    }
    return edges;
  }

  Step clear_until(AgentId agent) override {
    check_agent(agent, agents());
    return 0;
  }

  Step floor() const override { return floor_; }

  std::size_t agents() const override { return agents_.size(); }

  Step target() const override { return target_; }

  void validate() const override {
    for (AgentId agent = 0; agent < static_cast<AgentId>(agents_.size()); ++agent) {
      const bool unblocked = at(agent).step < target_ && unmet(agent) == nullptr;
      if (started_ && unblocked != at(agent).running) {
        throw std::logic_error("agent " + std::to_string(agent) +
                               (unblocked ? " could run but does not" : " runs but is blocked"));
      }
    }
  }

 private:
  struct Agent {
    Step step = 0;
    AgentId first_waiter = NO_AGENT;  // of the agents that wait for this one
    AgentId next_waiter = NO_AGENT;   // in the same list as this one
    bool running = false;
    std::int64_t met = 0;  // needs before this one are met
  };

  Agent& at(AgentId agent) { return agents_[static_cast<std::size_t>(agent)]; }
  const Agent& at(AgentId agent) const { return agents_[static_cast<std::size_t>(agent)]; }

  // The first need of the agent's step that is not met, or null.
  const Need* unmet(AgentId agent) const {
    const std::size_t row =
        static_cast<std::size_t>(at(agent).step) * agents_.size() + static_cast<std::size_t>(agent);
    for (auto i = std::max(offsets_[row], at(agent).met); i < offsets_[row + 1]; ++i) {
      const Need& need = needs_[static_cast<std::size_t>(i)];
      if (at(need.agent).step < need.step) return &need;
    }
    return nullptr;
  }

  void dispatch_or_wait(AgentId agent, Dispatches& out) {
    if (const Need* need = unmet(agent)) {
      at(agent).met = need - needs_.data();
      at(agent).next_waiter = std::exchange(at(need->agent).first_waiter, agent);
      return;
    }
    at(agent).running = true;
    const auto begin = static_cast<std::uint32_t>(out.agents.size());
    out.agents.push_back(agent);
    out.clusters.push_back({at(agent).step, begin, begin + 1});
  }

  void advance_floor() {
    while (floor_ < target_ && population_[static_cast<std::size_t>(floor_)] == 0) ++floor_;
  }

  std::vector<Agent> agents_;
  Step target_, floor_ = 0;
  std::vector<std::int64_t> offsets_;
  std::vector<Need> needs_;
  std::vector<AgentId> population_;  // number of agents at each step
  bool started_ = false;
};

// Throws std::invalid_argument unless offsets and agents, and `sound`, are right.
void check_rows(AgentId agents, Step steps, std::span<const std::int64_t> offsets,
                std::span<const AgentId> listed, bool sound, const char* right) {
  constexpr std::int32_t COUNT_MAX = 1 << 26;  // of agents and of steps, even if the other is 0
  if (agents > COUNT_MAX || steps > COUNT_MAX) {
    throw std::invalid_argument(std::to_string(agents) + " agents over " + std::to_string(steps) +
                                " steps; either must be at most " + std::to_string(COUNT_MAX));
  }
  const bool negative = agents < 0 || steps < 0;
  const std::size_t rows =
      negative ? 0 : static_cast<std::size_t>(agents) * static_cast<std::size_t>(steps);
  sound &= !negative && offsets.size() == rows + 1 && offsets[0] == 0 &&
           offsets[rows] == static_cast<std::int64_t>(listed.size()) &&
           std::ranges::is_sorted(offsets);
  for (const AgentId agent : listed) sound &= agent >= 0 && agent < agents;
  if (!sound) {
    throw std::invalid_argument("the dependencies of " + std::to_string(agents) + " agents over " +
                                std::to_string(steps) +
                                " steps need agents * steps + 1 ascending "
                                "offsets from 0 to the number of partners, and every partner below "
                                "the number of agents" +
                                right);
  }
}

}  // namespace

std::unique_ptr<Controller> make_graph_controller(AgentId agents, Step steps,
                                                  std::span<const std::int64_t> offsets,
                                                  std::span<const AgentId> partners) {
  check_rows(agents, steps, offsets, partners, true, "");
  std::vector<std::int64_t> ends = {0};
  std::vector<Need> needs;
  const auto width = static_cast<std::size_t>(agents);
  for (std::size_t row = 0; row + 1 < offsets.size(); ++row) {
    const auto step = static_cast<Step>(row / width);
    // Agents that meet are synchronised before and after the step at which they meet.
    for (std::size_t met = row < width ? row : row - width; met <= row; met += width) {
      for (auto i = offsets[met]; i < offsets[met + 1]; ++i) {
        needs.push_back({partners[static_cast<std::size_t>(i)], step});
      }
    }
    ends.push_back(static_cast<std::int64_t>(needs.size()));
  }
  return std::make_unique<GraphController>(agents, steps, std::move(ends), std::move(needs));
}

std::unique_ptr<Controller> make_value_controller(AgentId agents, Step steps,
                                                  std::span<const std::int64_t> offsets,
                                                  std::span<const AgentId> writers,
                                                  std::span<const Step> ago) {
  const bool earlier =
      ago.size() == writers.size() && std::ranges::all_of(ago, [](Step each) { return each >= 1; });
  check_rows(agents, steps, offsets, writers, earlier, ", at least one step ago");
  std::vector<Need> needs;
  for (std::size_t row = 0; row + 1 < offsets.size(); ++row) {
    const auto step = static_cast<Step>(row / static_cast<std::size_t>(agents));
    for (auto i = static_cast<std::size_t>(offsets[row]);
         i < static_cast<std::size_t>(offsets[row + 1]); ++i) {
      needs.push_back({writers[i], step - ago[i] + 1});
    }
  }
  return std::make_unique<GraphController>(
      agents, steps, std::vector<std::int64_t>(offsets.begin(), offsets.end()), std::move(needs));
}

}  // namespace metropolis
