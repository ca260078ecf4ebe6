#include "risk.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

namespace metropolis {

namespace {

constexpr AgentId OBSERVERS_MAX = 64;  // learned from in a step
constexpr double LOAD_SIM_S = 60;      // time constant of the average number of calls in flight
constexpr double LAG_SPREAD = 1.5;     // lags of one class differ by less than this factor
constexpr double JUDGED = 2;           // more than any chance
constexpr double OUTCOMES_FIRST = 8;   // outcomes that the initial chance is worth

}  // namespace

void SightChances::add(double distance, Step lag, bool in_sight) {
  Count& count = counts_[index(distance, lag)];
  ++count.pairs;
  if (in_sight) ++count.in_sight;
}

double SightChances::chance(double distance, Step lag) const {
  const Count& count = counts_[index(distance, lag)];
  return (static_cast<double>(count.in_sight) + 0.5) / (static_cast<double>(count.pairs) + 2);
}

// Single units near the radius, geometric beyond.
std::size_t SightChances::index(double distance, Step lag) const {
  const double beyond = std::max(0.0, distance - radius_);
  const double fine = beyond <= 8 ? std::ceil(beyond) : 8 + std::ceil(3 * std::log2(beyond / 8));
  const double late = lag <= 4 ? lag : 4 + std::floor(2 * std::log2(static_cast<double>(lag) / 4));
  const auto row = static_cast<std::size_t>(std::min<double>(fine, DISTANCES - 1));
  return row * LAG_CLASSES + static_cast<std::size_t>(std::min<double>(late, LAG_CLASSES - 1));
}

OutcomeChances::Kind OutcomeChances::kind(double in_sight, Step own_steps) {
  const auto row = std::ranges::upper_bound(IN_SIGHT, in_sight) - IN_SIGHT.begin();
  const auto column = std::bit_width(static_cast<std::uint32_t>(own_steps));
  return static_cast<std::size_t>(row) * OWN_STEPS +
         std::min<std::size_t>(static_cast<std::size_t>(column), OWN_STEPS - 1);
}

void OutcomeChances::add(Kind kind, bool right) {
  ++counts_[kind].outcomes;
  if (!right) ++counts_[kind].wrong;
}

double OutcomeChances::chance(Kind kind, double in_sight) const {
  const Count& count = counts_[kind];
  return (count.wrong + OUTCOMES_FIRST * in_sight / 2) / (count.outcomes + OUTCOMES_FIRST);
}

SightRisk::SightRisk(const TraceView& trace, const Metric& metric, const OptimisticOptions& options)
    : trace_(trace),
      metric_(metric),
      options_(options),
      reach_(std::max(options.perception_radius, 2 * options.max_velocity)),
      chances_(options.perception_radius),
      next_(static_cast<std::size_t>(trace.agents)),
      final_(next_.size()),
      kinds_(next_.size()),
      waiting_on_(next_.size()),
      refused_(next_.size(), JUDGED) {
  for (AgentId agent = 0; agent < trace.agents; ++agent) unjudged_.insert(agent);
}

void SightRisk::progress(AgentId agent, Step step) {
  const auto index = static_cast<std::size_t>(agent);
  if (step == next_[index]) return;
  next_[index] = step;
  unjudged_.insert(agent);
  for (const AgentId waiting : std::exchange(waiting_on_[index], {})) unjudged_.insert(waiting);
}

// The average counts, not the moment: a speculative call outlasts a short lull.
void SightRisk::update_load(std::int64_t calls, double now_sim_s) {
  const double kept = std::exp((calls_sim_s_ - now_sim_s) / LOAD_SIM_S);
  calls_ = kept * calls_ + (1 - kept) * static_cast<double>(calls);
  calls_sim_s_ = now_sim_s;
}

void SightRisk::update_lead() {
  slowest_ = *std::ranges::min_element(next_);
  const double sum = std::accumulate(next_.begin(), next_.end(), 0.0);
  mean_lead_ = sum / static_cast<double>(next_.size()) - static_cast<double>(slowest_);
}

// An instance slows down with its calls in flight, so the more there are, the more a wrong one
// costs; and the further an agent is ahead of the slowest one, the less the run waits for it.
double SightRisk::allowed(AgentId agent) const {
  const auto lead = static_cast<double>(next_[static_cast<std::size_t>(agent)] - slowest_);
  const double load = calls_ / options_.calls_half * lead / std::max(1.0, mean_lead_);
  return options_.risk_max / (1 + std::pow(load, 4));
}

std::vector<AgentId> SightRisk::choose(const std::vector<AgentId>& candidates, std::int64_t calls,
                                       double now_sim_s) {
  std::vector<AgentId> chosen;
  if (options_.risk_max < 0) return chosen;
  update_load(calls, now_sim_s);
  update_lead();
  std::visit(
      [&](const auto& metric) {
        learn(metric);
        for (const AgentId agent : candidates) {
          const double risk_max = allowed(agent);
          const bool is_new = unjudged_.erase(agent) > 0;
          if (!is_new && refused_[static_cast<std::size_t>(agent)] > risk_max) continue;
          if (may_run_ahead(metric, agent, risk_max)) chosen.push_back(agent);
        }
      },
      metric_);
  return chosen;
}

template <class M>
bool SightRisk::may_run_ahead(const M& metric, AgentId agent, double risk_max) {
  std::vector<AgentId> laggards;
  const double wrong = chance(metric, agent, laggards);
  const bool may = wrong <= risk_max;
  refused_[static_cast<std::size_t>(agent)] = may ? JUDGED : wrong;
  if (may) return true;
  for (const AgentId other : laggards) {
    waiting_on_[static_cast<std::size_t>(other)].push_back(agent);
  }
  return false;
}

template <class M>
double SightRisk::chance(const M& metric, AgentId agent, std::vector<AgentId>& laggards) {
  const auto index = static_cast<std::size_t>(agent);
  const Step step = next_[index];
  const Position here = trace_.position(step, agent);
  double apart = 1;
  for (AgentId other = 0; other < trace_.agents; ++other) {
    const Step behind = next_[static_cast<std::size_t>(other)];
    const Step lag = step - behind;
    if (lag <= 0) continue;
    const double distance = metric.distance(here, trace_.position(behind, other));
    if (distance > reach_ + lag * options_.max_velocity) continue;
    if (distance <= options_.perception_radius) {
      laggards = {other};
      kinds_[index] = OutcomeChances::kind(1, step - final_[index]);
      return 1;
    }
    laggards.push_back(other);
    apart *= 1 - chances_.chance(distance, lag);
  }
  kinds_[index] = OutcomeChances::kind(1 - apart, step - final_[index]);
  return outcomes_.chance(kinds_[index], 1 - apart);
}

// Learns from the steps that most agents have passed: the steps that all have passed are too few
// while one agent lags far behind.
template <class M>
void SightRisk::learn(const M& metric) {
  for (; learned_ < slowest_ + static_cast<Step>(mean_lead_); ++learned_) {
    const AgentId observers = std::min<AgentId>(trace_.agents, OBSERVERS_MAX);
    for (AgentId i = 0; i < observers; ++i) {
      const auto spread = static_cast<std::int64_t>(i) * trace_.agents / observers;
      learn(metric, static_cast<AgentId>((spread + learned_) % trace_.agents), learned_);
    }
  }
}

template <class M>
void SightRisk::learn(const M& metric, AgentId agent, Step step) {
  if (next_[static_cast<std::size_t>(agent)] < step) return;
  const Position here = trace_.position(step, agent);
  for (AgentId other = 0; other < trace_.agents; ++other) {
    if (other == agent || next_[static_cast<std::size_t>(other)] < step) continue;
    const bool in_sight =
        metric.perceives(here, trace_.position(step, other), options_.perception_radius);
    for (const Step lag : SightChances::LAGS) {
      if (lag > step) break;
      const double distance = metric.distance(here, trace_.position(step - lag, other));
      if (distance <= options_.perception_radius) continue;
      if (distance <= reach_ + LAG_SPREAD * lag * options_.max_velocity) {
        chances_.add(distance, lag, in_sight);
      }
    }
  }
}

}  // namespace metropolis
