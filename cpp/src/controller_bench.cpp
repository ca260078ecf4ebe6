#include "metropolis/controller_bench.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <queue>
#include <random>
#include <vector>

#include "metropolis/controllers.hpp"
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace metropolis {

namespace {

constexpr double MAX_VELOCITY = 1;

// A clock that costs a few nanoseconds to read; its unit is found by comparison.
std::uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

double wall_s() {
  return 1e-9 * static_cast<double>(std::chrono::steady_clock::now().time_since_epoch() /
                                    std::chrono::nanoseconds(1));
}

double thread_cpu_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double heap_bytes() {
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
  const struct mallinfo2 info = mallinfo2();
  return static_cast<double>(info.uordblks) + static_cast<double>(info.hblkhd);
#else
  return std::numeric_limits<double>::quiet_NaN();
#endif
}

// The world around the controller: who stands where, and who finishes when.
class Walkers {
 public:
  Walkers(const ControllerBenchOptions& options)
      : random_(options.seed),
        side_(std::max(
            2, static_cast<int>(std::lround(std::sqrt(options.agents * options.tiles_per_agent))))),
        positions(static_cast<std::size_t>(options.agents)) {
    std::uniform_int_distribution<int> tile(0, side_ - 1);
    for (Position& p : positions) p = {double(tile(random_)), double(tile(random_))};
    running_.reserve(positions.size());
  }

  void begin(const Dispatches& dispatches) {
    for (const auto& cluster : dispatches.clusters) {
      Running running{now_, cluster.step, {}};
      double service_s = 0;
      for (const AgentId agent : dispatches.members(cluster)) {
        service_s = std::max(service_s, service_s_(random_));
        running.agents.push_back(agent);
      }
      running.until_s += service_s;
      running_.push_back(std::move(running));
      std::ranges::push_heap(running_, later);
    }
  }

  bool idle() const { return running_.empty(); }

  // The next cluster to finish, after its members have walked.
  std::vector<AgentId> finish(std::vector<Position>& moved) {
    std::ranges::pop_heap(running_, later);
    std::vector<AgentId> agents = std::move(running_.back().agents);
    now_ = running_.back().until_s;
    step = running_.back().step;
    running_.pop_back();
    moved.clear();
    for (const AgentId agent : agents)
      moved.push_back(walk(positions[static_cast<std::size_t>(agent)]));
    return agents;
  }

 private:
  struct Running {
    double until_s;
    Step step;
    std::vector<AgentId> agents;
  };
  static bool later(const Running& a, const Running& b) { return a.until_s > b.until_s; }

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
  std::vector<Running> running_;

 public:
  std::vector<Position> positions;
  Step step = 0;  // of the cluster that finished last
};

}  // namespace

ControllerBenchResult bench_controller(const Rule& rule, const Metric& metric,
                                       const ControllerBenchOptions& options) {
  ControllerBenchResult result{};
  Walkers walkers(options);
  std::vector<std::uint32_t> durations;
  durations.reserve(static_cast<std::size_t>(options.agents) *
                    static_cast<std::size_t>(options.steps));

  const double heap_before = heap_bytes();
  const double construct_begin_s = thread_cpu_s();
  const auto controller =
      make_controller(rule, metric, MAX_VELOCITY, walkers.positions, options.steps);
  result.construct_cpu_s = thread_cpu_s() - construct_begin_s;
  result.bytes_per_agent = (heap_bytes() - heap_before) / options.agents;

  Dispatches out;
  std::vector<Position> moved;
  std::uint64_t inside = 0;
  const double cpu_begin_s = thread_cpu_s(), wall_begin_s = wall_s();
  const std::uint64_t begin = ticks();
  controller->start(out);
  inside += ticks() - begin;
  walkers.begin(out);
  while (!walkers.idle()) {
    const std::vector<AgentId> agents = walkers.finish(moved);
    out.clear();
    const std::uint64_t before = ticks();
    controller->commit(agents, moved, out);
    const std::uint64_t spent = ticks() - before;
    inside += spent;
    durations.push_back(static_cast<std::uint32_t>(std::min<std::uint64_t>(spent, UINT32_MAX)));
    result.skew_max = std::max(result.skew_max, walkers.step + 1 - controller->floor());
    walkers.begin(out);
  }
  // What other processes took of the machine is spread evenly over the loop: of its CPU time the
  // controller has the share it has of the loop's ticks. A single commit is timed as it went.
  const auto all = static_cast<double>(ticks() - begin);
  result.cpu_s = (thread_cpu_s() - cpu_begin_s) * static_cast<double>(inside) / all;
  const double tick_us = 1e6 * (wall_s() - wall_begin_s) / all;
  result.commits = static_cast<std::int64_t>(durations.size());
  std::ranges::sort(durations);
  const auto quantile_us = [&](double share) {
    const auto last = static_cast<double>(durations.size() - 1);
    return durations.empty() ? 0 : tick_us * durations[static_cast<std::size_t>(share * last)];
  };
  result.commit_p50_us = quantile_us(0.5);
  result.commit_p99_us = quantile_us(0.99);
  result.commit_max_us = quantile_us(1);
  return result;
}

}  // namespace metropolis
