#include "metropolis/optimistic_replay.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "metropolis/checks.hpp"
#include "metropolis/speculation.hpp"
#include "optimistic_calls.hpp"
#include "risk.hpp"
#include "stopwatch.hpp"
#include "value_reads.hpp"

namespace metropolis {

namespace {

std::unique_ptr<Speculation> speculation_of(const TraceView& trace, Controller& controller,
                                            const Metric& metric,
                                            const OptimisticOptions& options) {
  std::vector<EntityId> bodies(static_cast<std::size_t>(trace.agents));
  std::iota(bodies.begin(), bodies.end(), 0);
  std::vector<Sighting> entities;
  for (AgentId agent = 0; agent < trace.agents; ++agent) {
    entities.push_back({agent, trace.position(0, agent), 0});
  }
  const std::vector<Digest> minds(bodies.size(), 0);
  return make_speculation(controller, metric,
                          {options.perception_radius, options.cluster_radius, trace.steps}, bodies,
                          entities, minds);
}

// The digest of a mind that was `before` and has seen `seen`.
Digest mind_after(Digest before, const std::vector<Sighting>& seen) {
  std::uint64_t digest = 0x9e3779b97f4a7c15u;
  const auto mix = [&](std::int64_t value) {
    digest ^=
        static_cast<std::uint64_t>(value) + 0x9e3779b97f4a7c15u + (digest << 6) + (digest >> 2);
    digest *= 0xff51afd7ed558ccdu;
    digest ^= digest >> 32;
  };
  mix(before);
  for (const Sighting& one : seen) {
    mix(one.entity);
    mix(one.digest);
  }
  return static_cast<Digest>(digest >> 1);
}

void check_options(const OptimisticOptions& options) {
  if (!(options.max_velocity >= 0 && options.max_velocity <= VELOCITY_MAX)) {
    throw std::invalid_argument("the velocity is " + format_number(options.max_velocity) +
                                "; it must be from 0 to " + format_number(VELOCITY_MAX));
  }
  if (!(options.calls_half > 0)) {
    throw std::invalid_argument("the calls at which the risk is halved are " +
                                format_number(options.calls_half) + "; they must be positive");
  }
  if (!(options.risk_max <= 1)) {
    throw std::invalid_argument("the risk is " + format_number(options.risk_max) +
                                "; it must be at most 1");
  }
}

class OptimisticReplay final : public TraceReplay {
 public:
  OptimisticReplay(const TraceView& trace, Controller& controller, InstancePool& instances,
                   const Metric& metric, const OptimisticOptions& options)
      : TraceReplay(trace, controller, instances),
        options_(options),
        speculation_(speculation_of(trace, controller, metric, options)),
        calls_(trace, instances, timeline_, options.step_priority),
        risk_(trace, metric, options),
        value_reads_(trace),
        final_minds_(static_cast<std::size_t>(trace.agents)) {
    check_options(options);
    wasted_.assign(dispatched_sim_s_.size(), -1);
  }

 private:
  struct Execution {
    Step step = 0;
    std::vector<AgentId> agents;
    std::vector<Mind> minds;            // afterwards
    std::vector<ExecutionId> proceeds;  // of a resolution
    double dispatched_sim_s = 0;
    AgentId blocked_by = NO_AGENT;
    std::optional<OutcomeChances::Kind> kind;  // of an agent that ran ahead
  };

  void run_until(std::int64_t pause_at) override {
    if (!started_) {
      started_ = true;
      obey(timed([&] { return speculation_->start(); }));
    }
    while (committed_ < total_agent_steps()) {
      settle();
      while (run_ahead()) settle();
      if (committed_ >= pause_at) return;
      now_sim_s_ = calls_.leap(ended_);
      just_committed_.clear();
      sent_ = calls_.sent();
    }
  }

  template <class Call>
  std::vector<SpeculationCommand> timed(const Call& call) {
    const Stopwatch stopwatch(controller_wall_s_);
    return call();
  }

  // Reports what has ended until nothing ends without a call.
  void settle() {
    while (!observed_.empty() || !ended_.empty()) {
      for (auto& [id, reads] : std::exchange(observed_, {})) {
        if (executions_.contains(id)) speculation_->observed(id, std::move(reads));
      }
      for (const ExecutionId id : std::exchange(ended_, {})) {
        const auto found = executions_.find(id);
        if (found != executions_.end()) report(id, found->second);
      }
      obey(timed([&] { return speculation_->settle(); }));
    }
  }

  void report(ExecutionId id, const Execution& execution) {
    if (execution.proceeds.empty()) {
      speculation_->proceeded(id);
      return;
    }
    std::vector<Write> writes;
    const Step next = execution.step + 1;
    for (const AgentId agent : execution.agents) {
      const Position there = trace_.position(next, agent);
      writes.push_back({agent, Sighting{agent, there, next}});
      if (const auto entity = value_reads_.written(execution.step, agent)) {
        writes.push_back({*entity, Sighting{*entity, there, mind_of(execution, agent)}});
      }
    }
    speculation_->resolved(id, {}, std::move(writes), {}, execution.minds, {});
  }

  void obey(const std::vector<SpeculationCommand>& commands) {
    using Kind = SpeculationCommand::Kind;
    for (const SpeculationCommand& command : commands) {
      switch (command.kind) {
        case Kind::ABORT:
          abort(command.id);
          break;
        case Kind::DROP:
          executions_.erase(command.id);
          break;
        case Kind::COMMIT:
          commit(command);
          break;
        case Kind::PROMOTE:
          calls_.promote(command.id);
          break;
        case Kind::PREDICT:  // recorded agents have no forecasts
          break;
        case Kind::RESOLVE:
          resolve(command);
          break;
        case Kind::PROCEED:
          proceed(command);
          break;
      }
    }
    forget_below(speculation_->floor());
    for (AgentId agent = 0; agent < trace_.agents; ++agent) {
      risk_.progress(agent, speculation_->next_step(agent));
    }
  }

  Execution& add(const SpeculationCommand& command) {
    Execution& execution = executions_[command.id];
    execution.step = command.step;
    execution.agents = command.agents;
    at_step_[command.step].push_back(command.id);
    return execution;
  }

  void proceed(const SpeculationCommand& command) {
    const AgentId agent = command.agents.front();
    Execution& execution = add(command);
    execution.dispatched_sim_s = now_sim_s_;
    if (command.sure) execution.blocked_by = awaited(command.step, agent);
    ++wasted_[trace_.row(command.step, agent)];
    if (!command.sure) execution.kind = risk_.kind(agent);
    Digest mind = mind_before(command);
    Reads reads;
    for (const Question& question : questions(command.step, agent)) {
      auto seen = speculation_->answer(question, command.step, command.sure);
      mind = mind_after(mind, seen);
      reads.push_back({question, std::move(seen)});
    }
    execution.minds = {{agent, mind}};
    observed_.emplace_back(command.id, std::move(reads));
    if (!calls_.add(command.id, command.step, agent, command.sure)) ended_.push_back(command.id);
  }

  std::vector<Question> questions(Step step, AgentId agent) const {
    if (trace_.knows_values()) return value_reads_.questions(step, agent);
    return {
        {Question::Kind::ENTITIES, -1, trace_.position(step, agent), options_.perception_radius}};
  }

  static Digest mind_of(const Execution& execution, AgentId agent) {
    return std::ranges::lower_bound(execution.minds, agent, {}, &Mind::agent)->digest;
  }

  Digest mind_before(const SpeculationCommand& command) const {
    const AgentId agent = command.agents.front();
    if (command.mind == NO_EXECUTION) return final_minds_[static_cast<std::size_t>(agent)];
    return mind_of(executions_.at(command.mind), agent);
  }

  void resolve(const SpeculationCommand& command) {
    Execution& execution = add(command);
    execution.proceeds = command.proceeds;
    for (const ExecutionId id : command.proceeds) {
      execution.minds.push_back(executions_.at(id).minds.front());
    }
    ended_.push_back(command.id);
  }

  void commit(const SpeculationCommand& command) {
    const auto found = executions_.find(command.id);
    const Execution& execution = found->second;
    for (std::size_t i = 0; i < execution.agents.size(); ++i) {
      const AgentId agent = execution.agents[i];
      const std::size_t row = trace_.row(command.step, agent);
      const auto proceed = executions_.find(execution.proceeds[i]);
      final_minds_[static_cast<std::size_t>(agent)] = execution.minds[i].digest;
      dispatched_sim_s_[row] = proceed->second.dispatched_sim_s;
      committed_sim_s_[row] = now_sim_s_;
      just_committed_.push_back({command.step, agent});
      blocked_by_[row] = proceed->second.blocked_by;
      cluster_[row] = execution.agents.front();
      if (proceed->second.kind) risk_.learn(*proceed->second.kind, true);
      risk_.finalise(agent, command.step + 1);
      calls_.commit(proceed->first);
      executions_.erase(proceed);
    }
    committed_ += static_cast<std::int64_t>(execution.agents.size());
    executions_.erase(found);
  }

  void abort(ExecutionId id) {
    calls_.abort(id);
    const auto found = executions_.find(id);
    if (found == executions_.end()) return;
    if (found->second.kind) risk_.learn(*found->second.kind, false);
    executions_.erase(found);
  }

  // Forgets the executions that were neither committed, aborted nor dropped.
  void forget_below(Step floor) {
    while (!at_step_.empty() && at_step_.begin()->first < floor) {
      for (const ExecutionId id : at_step_.begin()->second) abort(id);
      at_step_.erase(at_step_.begin());
    }
  }

  // Lets agents run ahead; whether one does.
  bool run_ahead() {
    const std::vector<AgentId> agents =
        risk_.choose(speculation_->candidates(), instances_.outstanding(), now_sim_s_);
    if (agents.empty()) return false;
    obey(timed([&] { return speculation_->speculate(agents); }));
    return true;
  }

  OptimisticOptions options_;
  std::unique_ptr<Speculation> speculation_;
  OptimisticCalls calls_;
  SightRisk risk_;
  ValueReads value_reads_;
  std::unordered_map<ExecutionId, Execution> executions_;
  std::map<Step, std::vector<ExecutionId>> at_step_;
  std::vector<Digest> final_minds_;
  std::vector<std::pair<ExecutionId, Reads>> observed_;
  std::vector<ExecutionId> ended_;
};

}  // namespace

std::unique_ptr<TraceReplay> make_optimistic_replay(const TraceView& trace, Controller& controller,
                                                    InstancePool& instances, const Metric& metric,
                                                    const OptimisticOptions& options) {
  return std::make_unique<OptimisticReplay>(trace, controller, instances, metric, options);
}

}  // namespace metropolis
