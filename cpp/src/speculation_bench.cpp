#include "metropolis/speculation_bench.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "batch.hpp"
#include "bench_clock.hpp"
#include "metropolis/controllers.hpp"
#include "metropolis/speculation.hpp"

namespace metropolis {

namespace {

constexpr double RADIUS = 4, WALKERS_VELOCITY = 1, CLUSTER_RADIUS = 4, BLOCK_RADIUS = 4;
constexpr Step AHEAD_MAX = 4, WALKERS_STEPS_MAX = 10'000;

// Carries out the commands of a speculation; service times are lognormal, servers unlimited.
class Runners {
 public:
  explicit Runners(const ControllerBenchOptions& options)
      : random_(options.seed), steps_(options.steps), starts_(index(options.agents)) {
    const double side = std::max(2.0, std::sqrt(options.agents * options.tiles_per_agent));
    std::uniform_int_distribution<int> tile(0, static_cast<int>(side));
    for (Position& start : starts_) start = {double(tile(random_)), double(tile(random_))};
    std::vector<EntityId> bodies(starts_.size());
    std::iota(bodies.begin(), bodies.end(), 0);
    std::vector<Sighting> entities;
    for (const EntityId body : bodies) entities.push_back({body, starts_[index(body)], 0});
    heap_begin_ = heap_bytes();
    controller_ = make_controller({CLUSTER_RADIUS, BLOCK_RADIUS}, Chebyshev{}, WALKERS_VELOCITY,
                                  starts_, {}, steps_);
    speculation_ = make_speculation(*controller_, Chebyshev{}, {RADIUS, CLUSTER_RADIUS, steps_},
                                    bodies, entities, std::vector<Digest>(bodies.size(), 0));
  }

  void run() {
    obey(timed([&] { return speculation_->start(); }));
    while (speculation_->floor() < steps_) {
      for (auto daring = choose(); !daring.empty(); daring = choose()) {
        obey(timed([&] { return speculation_->speculate(daring); }));
      }
      finish_next();
      if (bytes_per_agent_ == 0 && speculation_->floor() >= steps_ / 2) measure();
    }
  }

  std::uint64_t spent_ticks() const { return spent_; }
  std::int64_t proceeds() const { return proceeds_; }
  double bytes_per_agent() const { return bytes_per_agent_; }
  Step skew_max() const { return skew_max_; }

 private:
  struct Ending {
    double at_s;
    ExecutionId id;
  };
  using Kind = SpeculationCommand::Kind;

  static std::size_t index(AgentId agent) { return static_cast<std::size_t>(agent); }

  template <class Call>
  auto timed(const Call& call) -> decltype(call()) {
    const std::uint64_t begin = ticks();
    auto answer = call();
    spent_ += ticks() - begin;
    return answer;
  }

  // To and fro between 0 and 8 tiles from the start.
  Position place(AgentId agent, Step step) const {
    const Position start = starts_[index(agent)];
    const Step phase = (step + agent % 16) % 16, from = agent % 16;
    const auto offset = [](Step at) { return at < 8 ? at : 16 - at; };
    return {start.x + offset(phase) - offset(from), start.y};
  }

  // Candidates that may run: of those that have got further, or of all once the floor has risen.
  std::vector<AgentId> choose() {
    std::vector<AgentId> chosen = std::exchange(advanced_, {});
    const Step floor = speculation_->floor();
    if (floor > floor_) chosen = timed([&] { return speculation_->candidates(); });
    floor_ = floor;
    sort_unique(chosen);
    std::erase_if(chosen, [&](AgentId agent) {
      return !speculation_->is_candidate(agent) ||
             speculation_->next_step(agent) >= floor + AHEAD_MAX;
    });
    return chosen;
  }

  void obey(std::vector<SpeculationCommand> commands) {
    while (!commands.empty()) {
      std::vector<const SpeculationCommand*> resolves;
      for (const SpeculationCommand& command : commands) {
        if (command.kind == Kind::RESOLVE) resolves.push_back(&command);
        if (command.kind != Kind::PROCEED) continue;
        ++proceeds_;
        skew_max_ = std::max(skew_max_, command.step - speculation_->floor());
        ending_.push_back({now_s_ + service_s_(random_), command.id});
        std::ranges::push_heap(ending_, std::greater{}, &Ending::at_s);
        observe(command);
      }
      for (const SpeculationCommand* command : resolves) resolve(*command);
      if (resolves.empty() && !observed_) return;
      observed_ = false;
      commands = timed([&] { return speculation_->settle(); });
    }
  }

  void observe(const SpeculationCommand& command) {
    const AgentId agent = command.agents.front();
    const Question question{Question::Kind::ENTITIES, -1, place(agent, command.step), RADIUS};
    Reads reads{{question, speculation_->answer(question, command.step, command.sure)}};
    const std::uint64_t begin = ticks();
    speculation_->observed(command.id, std::move(reads));
    spent_ += ticks() - begin;
    observed_ = true;
  }

  void resolve(const SpeculationCommand& command) {
    std::vector<Write> writes;
    std::vector<Mind> minds;
    for (const AgentId agent : command.agents) {
      writes.push_back({agent, Sighting{agent, place(agent, command.step + 1), 0}});
      minds.push_back({agent, 0});
      advanced_.push_back(agent);
    }
    const std::uint64_t begin = ticks();
    speculation_->resolved(command.id, {}, std::move(writes), {}, std::move(minds), {});
    spent_ += ticks() - begin;
  }

  void finish_next() {
    std::ranges::pop_heap(ending_, std::greater{}, &Ending::at_s);
    const Ending ended = ending_.back();
    ending_.pop_back();
    now_s_ = ended.at_s;
    obey(timed([&] {
      speculation_->proceeded(ended.id);
      return speculation_->settle();
    }));
  }

  void measure() {
    const double own = static_cast<double>(ending_.capacity() * sizeof(Ending));
    bytes_per_agent_ = (heap_bytes() - heap_begin_ - own) / static_cast<double>(starts_.size());
  }

  std::mt19937_64 random_;
  std::lognormal_distribution<double> service_s_{0, 1};
  Step steps_;
  std::vector<Position> starts_;
  std::unique_ptr<Controller> controller_;
  std::unique_ptr<Speculation> speculation_;
  std::vector<Ending> ending_;  // a heap, the earliest on top
  std::vector<AgentId> advanced_;
  Step floor_ = 0;
  bool observed_ = false;
  double now_s_ = 0, heap_begin_ = 0, bytes_per_agent_ = 0;
  std::uint64_t spent_ = 0;
  std::int64_t proceeds_ = 0;
  Step skew_max_ = 0;
};

}  // namespace

SpeculationBenchResult bench_speculation(const ControllerBenchOptions& options) {
  check_bench_options(options, WALKERS_STEPS_MAX);
  Runners runners(options);
  const double cpu_begin_s = thread_cpu_s();
  const std::uint64_t begin = ticks();
  runners.run();
  const auto all = static_cast<double>(ticks() - begin);
  SpeculationBenchResult result{};
  result.agent_steps = std::int64_t{options.agents} * options.steps;
  // As in bench_controller: the share of the CPU time equals the share of the ticks.
  result.cpu_s = (thread_cpu_s() - cpu_begin_s) * static_cast<double>(runners.spent_ticks()) / all;
  result.executions_per_agent_step =
      static_cast<double>(runners.proceeds()) / static_cast<double>(result.agent_steps);
  result.bytes_per_agent = runners.bytes_per_agent();
  result.skew_max = runners.skew_max();
  return result;
}

}  // namespace metropolis
