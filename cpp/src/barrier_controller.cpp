// Lockstep: all agents form one cluster, with a barrier after every step.
#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <variant>
#include <vector>

#include "metropolis/checks.hpp"
#include "metropolis/controllers.hpp"

namespace metropolis {

namespace {

class BarrierController final : public Controller {
 public:
  BarrierController(const Metric& metric, double max_velocity, std::span<const Position> positions,
                    Step step, Step target_step, bool check_moves)
      : metric_(metric),
        velocity_(max_velocity),
        positions_(positions.begin(), positions.end()),
        agents_(positions.size()),
        step_(step),
        target_(target_step),
        check_moves_(check_moves) {
    std::iota(agents_.begin(), agents_.end(), 0);
  }

  void start(Dispatches& out) override {
    check_first_start(started_);
    dispatch(out);
  }

  void commit(std::span<const AgentId> agents, std::span<const Position> positions,
              Dispatches& out) override {
    const bool running = started_ && step_ < target_;
    check_commit(agents, positions, agents_.size(), [&](AgentId) { return running; });
    if (!std::ranges::equal(agents, agents_)) {
      throw std::invalid_argument(not_a_cluster(agents_, agents));
    }
    std::visit(
        [&](const auto& metric) {
          for (std::size_t i = 0; i < agents.size(); ++i) {
            check_move(metric, agents[i], positions_[i], positions[i], step_, velocity_,
                       check_moves_);
          }
        },
        metric_);
    positions_.assign(positions.begin(), positions.end());
    ++step_;
    dispatch(out);
  }

  std::vector<AgentId> blocked_by() const override {
    return std::vector<AgentId>(agents_.size(), NO_AGENT);
  }

  Step clear_until(AgentId agent) override {
    check_agent(agent, agents());
    return 0;
  }

  Step floor() const override { return agents_.empty() ? target_ : step_; }

  std::size_t agents() const override { return agents_.size(); }

  Step target() const override { return target_; }

  void validate() const override {
    if (step_ > target_) throw std::logic_error("the agents have passed the target step");
  }

 private:
  void dispatch(Dispatches& out) const {
    if (step_ == target_ || agents_.empty()) return;
    const auto begin = static_cast<std::uint32_t>(out.agents.size());
    out.agents.insert(out.agents.end(), agents_.begin(), agents_.end());
    out.clusters.push_back({step_, begin, static_cast<std::uint32_t>(out.agents.size())});
  }

  Metric metric_;
  double velocity_;
  std::vector<Position> positions_;
  std::vector<AgentId> agents_;
  Step step_, target_;
  bool check_moves_, started_ = false;
};

}  // namespace

std::unique_ptr<Controller> make_barrier_controller(const Metric& metric, double max_velocity,
                                                    std::span<const Position> positions, Step step,
                                                    Step target_step, bool check_moves) {
  return std::make_unique<BarrierController>(metric, max_velocity, positions, step, target_step,
                                             check_moves);
}

}  // namespace metropolis
