// Decides which agents run ahead in a replay, by the chance that their next step would be wrong.
// The chance is learned from movement and from the share of steps that were wrong.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "metropolis/optimistic_replay.hpp"

namespace metropolis {

// How often an agent that lags behind comes into sight. For an agent that stands at p at step s,
// and another that stood at `distance` from p at step s - `lag`, the table counts how often the
// other was in sight of p at step s.
class SightChances {
 public:
  explicit SightChances(double radius) : radius_(radius) {}

  void add(double distance, Step lag, bool in_sight);
  // The estimated share of pairs at this distance and lag that are in sight; at first 1/4.
  double chance(double distance, Step lag) const;

  // The lags that are learned: a roughly geometric series.
  static constexpr std::array<Step, 14> LAGS{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128};

 private:
  struct Count {
    std::int64_t pairs = 0;
    std::int64_t in_sight = 0;
  };
  static constexpr std::size_t DISTANCES = 64, LAG_CLASSES = 24;

  std::size_t index(double distance, Step lag) const;

  double radius_;
  std::vector<Count> counts_ = std::vector<Count>(DISTANCES * LAG_CLASSES);
};

// The error rate of speculative steps, learned from the run. The chance of a meeting is a poor
// estimate of it: an earlier step of the same agent may be wrong, and agents that have been apart
// for many steps mostly stay apart.
class OutcomeChances {
 public:
  // A class of steps: a range of the chance of a meeting, and a range of the number of steps of the
  // agent that are not final.
  using Kind = std::size_t;

  static Kind kind(double in_sight, Step own_steps);
  void add(Kind kind, bool right);
  // The estimated share of steps of `kind` that are wrong; at first half of `in_sight`.
  double chance(Kind kind, double in_sight) const;

 private:
  static constexpr std::array<double, 10> IN_SIGHT{0.002, 0.01, 0.03, 0.07, 0.15,
                                                   0.3,   0.5,  0.7,  0.9,  0.97};
  static constexpr std::size_t OWN_STEPS = 16;  // classes, each twice as wide as the one before

  struct Count {
    double outcomes = 0, wrong = 0;
  };
  std::vector<Count> counts_ = std::vector<Count>((IN_SIGHT.size() + 1) * OWN_STEPS);
};

// Decides which agents run ahead.
class SightRisk {
 public:
  SightRisk(const TraceView& trace, const Metric& metric, const OptimisticOptions& options);

  // The agent's next step is `step` now: it and the agents that waited for it are judged again.
  void progress(AgentId agent, Step step);
  // The agent's steps below `step` are final.
  void finalise(AgentId agent, Step step) { final_[static_cast<std::size_t>(agent)] = step; }

  // The kind of the agent's step that was judged last.
  OutcomeChances::Kind kind(AgentId agent) const { return kinds_[static_cast<std::size_t>(agent)]; }
  // A step of `kind` that ran ahead was right or wrong.
  void learn(OutcomeChances::Kind kind, bool right) { outcomes_.add(kind, right); }

  // Returns the agents among `candidates` that run ahead while `calls` calls are in flight. Each is
  // judged after progress(), and again when a greater chance of being wrong is allowed.
  std::vector<AgentId> choose(const std::vector<AgentId>& candidates, std::int64_t calls,
                              double now_sim_s);

 private:
  void update_load(std::int64_t calls, double now_sim_s);
  void update_lead();
  // The chance of being wrong that is allowed to an agent.
  double allowed(AgentId agent) const;
  template <class M>
  bool may_run_ahead(const M& metric, AgentId agent, double risk_max);
  // The chance that the agent's next step is wrong. Sets `laggards` to the agents behind that may
  // come into sight; if one is in sight already, to that agent alone.
  template <class M>
  double chance(const M& metric, AgentId agent, std::vector<AgentId>& laggards);
  template <class M>
  void learn(const M& metric);
  template <class M>
  void learn(const M& metric, AgentId agent, Step step);

  TraceView trace_;
  Metric metric_;
  OptimisticOptions options_;
  double reach_;  // beyond it, plus the velocity per step of lag, no agent comes into sight
  SightChances chances_;
  OutcomeChances outcomes_;
  Step learned_ = 0;  // chances_ contains the steps below this one
  std::vector<Step> next_, final_;
  std::vector<OutcomeChances::Kind> kinds_;
  Step slowest_ = 0;
  double mean_lead_ = 0;  // mean number of steps that agents are ahead of the slowest one
  std::set<AgentId> unjudged_;
  std::vector<std::vector<AgentId>> waiting_on_;
  std::vector<double> refused_;         // by agent: the chance for which it was refused, or JUDGED
  double calls_ = 0, calls_sim_s_ = 0;  // the average calls in flight; the time of its last update
};

}  // namespace metropolis
