#include "metropolis/controller_bench.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench_clock.hpp"
#include "metropolis/controllers.hpp"

namespace metropolis {

namespace {

constexpr double VELOCITY = 1;
constexpr Step STEPS_MAX = 1'000'000;
constexpr std::int64_t AGENT_STEPS_MIN = 1'000'000;  // small populations are run several times

// A histogram of durations with buckets of 1/32 octave, in constant memory.
class Histogram {
 public:
  void add(std::uint64_t ticks) {
    ++counts_[bucket(ticks)];
    ++total_;
    max_ = std::max(max_, ticks);
  }

  std::int64_t total() const { return total_; }
  double max() const { return static_cast<double>(max_); }

  // The lower end of the quantile's bucket.
  double quantile(double share) const {
    auto left = static_cast<std::int64_t>(share * static_cast<double>(total_));
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      left -= counts_[i];
      if (left < 0) return static_cast<double>(start(i));
    }
    return max();
  }

 private:
  static constexpr int BITS = 5;
  static std::size_t bucket(std::uint64_t ticks) {
    const int shift = std::max(0, static_cast<int>(std::bit_width(ticks)) - BITS - 1);
    return (static_cast<std::size_t>(shift) << BITS) + static_cast<std::size_t>(ticks >> shift);
  }
  static std::uint64_t start(std::size_t bucket) {
    const std::size_t octave = bucket >> BITS, rest = bucket & ((1u << BITS) - 1);
    return octave == 0 ? rest : (rest | 1u << BITS) << (octave - 1);
  }

  std::vector<std::int64_t> counts_ = std::vector<std::int64_t>(64 << BITS);
  std::int64_t total_ = 0;
  std::uint64_t max_ = 0;
};

// The controller's environment: positions of agents and end times of clusters.
class Walkers {
 public:
  Walkers(const ControllerBenchOptions& options)
      : random_(options.seed),
        side_(std::max(
            2, static_cast<int>(std::lround(std::sqrt(options.agents * options.tiles_per_agent))))),
        positions_(static_cast<std::size_t>(options.agents)),
        clusters_(positions_.size()) {
    std::uniform_int_distribution<int> tile(0, side_ - 1);
    for (Position& p : positions_) p = {double(tile(random_)), double(tile(random_))};
    ending_.reserve(positions_.size());
  }

  const std::vector<Position>& positions() const { return positions_; }

  void start_clusters(const Dispatches& dispatches) {
    for (const auto& cluster : dispatches.clusters) {
      const auto members = dispatches.members(cluster);
      double service_s = 0;
      for (std::size_t i = 0; i < members.size(); ++i) {
        service_s = std::max(service_s, service_s_(random_));
      }
      clusters_[static_cast<std::size_t>(members[0])].assign(members.begin(), members.end());
      ending_.push_back({now_ + service_s, members[0]});
      std::ranges::push_heap(ending_, std::greater{}, &Ending::at_s);
    }
  }

  bool idle() const { return ending_.empty(); }

  // The next cluster to finish; `moved` are the new positions of its members.
  const std::vector<AgentId>& finish_next(std::vector<Position>& moved) {
    std::ranges::pop_heap(ending_, std::greater{}, &Ending::at_s);
    now_ = ending_.back().at_s;
    const auto& agents = clusters_[static_cast<std::size_t>(ending_.back().first_agent)];
    ending_.pop_back();
    moved.clear();
    for (const AgentId agent : agents) {
      moved.push_back(walk(positions_[static_cast<std::size_t>(agent)]));
    }
    return agents;
  }

 private:
  struct Ending {
    double at_s;
    AgentId first_agent;
  };

  Position walk(Position& p) {
    const std::uint64_t draw = random_();
    double& axis = draw & 1 ? p.x : p.y;
    const double direction = draw & 2 ? 1 : -1;
    axis += axis + direction < 0 || axis + direction >= side_ ? -direction : direction;
    return p;
  }

  std::mt19937_64 random_;
  std::lognormal_distribution<double> service_s_{0, 1};
  int side_;
  double now_ = 0;
  std::vector<Position> positions_;
  std::vector<std::vector<AgentId>> clusters_;  // by their first agent
  std::vector<Ending> ending_;                  // a heap, the earliest on top
};

}  // namespace

ControllerBenchResult bench_controller(const Rule& rule, const Metric& metric,
                                       const ControllerBenchOptions& options) {
  check_bench_options(options, STEPS_MAX);
  ControllerBenchResult result{};
  const auto make = [&](std::span<const Position> positions) {
    return make_controller(rule, metric, VELOCITY, positions, {}, options.steps);
  };
  // Mean heap bytes of many controllers: malloc's caches of small blocks then do not matter.
  const auto bytes_each = [&](std::span<const Position> positions) {
    std::vector<std::unique_ptr<Controller>> copies(
        static_cast<std::size_t>(std::max(1, 100'000 / options.agents)));
    const double heap_before = heap_bytes();
    const double construct_begin_s = thread_cpu_s();
    for (auto& copy : copies) copy = make(positions);
    const auto count = static_cast<double>(copies.size());
    result.construct_cpu_s = (thread_cpu_s() - construct_begin_s) / count;
    return (heap_bytes() - heap_before) / count;
  };
  result.bytes_fixed = bytes_each({});
  result.bytes_per_agent =
      (bytes_each(Walkers(options).positions()) - result.bytes_fixed) / options.agents;

  const std::int64_t agent_steps = std::int64_t{options.agents} * options.steps;
  const std::int64_t runs = std::max<std::int64_t>(1, AGENT_STEPS_MIN / agent_steps);
  result.agent_steps = runs * agent_steps;
  Histogram durations;
  Dispatches out;
  std::vector<Position> moved;
  std::uint64_t controller_ticks = 0;
  const double cpu_begin_s = thread_cpu_s(), wall_begin_s = wall_s();
  const std::uint64_t begin = ticks();
  for (std::int64_t run = 0; run < runs; ++run) {
    ControllerBenchOptions varied = options;
    varied.seed += static_cast<std::uint64_t>(run);
    Walkers walkers(varied);
    const auto controller = make(walkers.positions());
    out.clear();
    const std::uint64_t start = ticks();
    controller->start(out);
    controller_ticks += ticks() - start;
    walkers.start_clusters(out);
    while (!walkers.idle()) {
      const std::vector<AgentId>& agents = walkers.finish_next(moved);
      out.clear();
      const std::uint64_t before = ticks();
      controller->commit(agents, moved, out);
      const std::uint64_t spent = ticks() - before;
      controller_ticks += spent;
      durations.add(spent);
      for (const auto& cluster : out.clusters) {
        result.skew_max = std::max(result.skew_max, cluster.step - controller->floor());
      }
      walkers.start_clusters(out);
    }
  }
  // Load of other processes is assumed to be even over the loop: the controller's share of the CPU
  // time equals its share of the loop's ticks. Single commits are timed without correction.
  const auto all = static_cast<double>(ticks() - begin);
  result.cpu_s = (thread_cpu_s() - cpu_begin_s) * static_cast<double>(controller_ticks) / all;
  const double tick_us = 1e6 * (wall_s() - wall_begin_s) / all;
  result.commits = durations.total();
  result.commit_p50_us = tick_us * durations.quantile(0.5);
  result.commit_p99_us = tick_us * durations.quantile(0.99);
  result.commit_max_us = tick_us * durations.max();
  return result;
}

void check_bench_options(const ControllerBenchOptions& options, Step steps_max) {
  constexpr AgentId AGENTS_MAX = 10'000'000;
  if (options.agents >= 1 && options.agents <= AGENTS_MAX && options.steps >= 1 &&
      options.steps <= steps_max) {
    return;
  }
  throw std::invalid_argument("a bench of " + std::to_string(options.agents) + " agents over " +
                              std::to_string(options.steps) + " steps; it needs 1 to " +
                              std::to_string(AGENTS_MAX) + " and 1 to " +
                              std::to_string(steps_max));
}

}  // namespace metropolis
