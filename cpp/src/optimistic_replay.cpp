#include "metropolis/optimistic_replay.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "metropolis/speculation.hpp"
#include "risk.hpp"

namespace metropolis {

namespace {

std::vector<EntityId> bodies_of(AgentId agents) {
  std::vector<EntityId> bodies(static_cast<std::size_t>(agents));
  std::iota(bodies.begin(), bodies.end(), 0);
  return bodies;
}

template <class M>
class OptimisticReplayOf final : public TraceReplay {
 public:
  OptimisticReplayOf(const TraceView& trace, Controller& controller, InstancePool& instances,
                     const M& metric, const OptimisticOptions& options)
      : trace_(trace),
        instances_(instances),
        metric_(metric),
        options_(options),
        chances_(options.perception_radius) {
    check_trace(trace_);
    if (instances.outstanding() != 0) {
      throw std::invalid_argument("the instances are not idle; a replay needs them idle");
    }
    std::vector<Sighting> entities;
    for (AgentId agent = 0; agent < trace.agents; ++agent) {
      entities.push_back({agent, position(0, agent), 0});
    }
    const std::vector<Digest> minds(entities.size(), 0);
    speculation_ = make_speculation(
        controller, Metric(metric),
        {options.perception_radius, options.cluster_radius, trace.steps}, bodies_of(trace.agents),
        entities, minds);
    const std::size_t calls = trace_.prompt_tokens.size();
    timeline_.sent_sim_s.assign(calls, std::nan(""));
    timeline_.first_token_sim_s.assign(calls, std::nan(""));
    timeline_.completed_sim_s.assign(calls, std::nan(""));
    timeline_.instance.assign(calls, -1);
    answered_.resize(calls);
    const std::size_t rows =
        static_cast<std::size_t>(trace.steps) * static_cast<std::size_t>(trace.agents);
    dispatched_sim_s_.assign(rows, std::nan(""));
    committed_sim_s_.assign(rows, std::nan(""));
    waiting_on_.resize(static_cast<std::size_t>(trace.agents));
    for (AgentId agent = 0; agent < trace.agents; ++agent) unjudged_.insert(agent);
    next_.resize(static_cast<std::size_t>(trace.agents));
  }

  bool run(std::int64_t agent_steps) override {
    const std::int64_t total = static_cast<std::int64_t>(trace_.agents) * trace_.steps;
    const std::int64_t pause_at = committed_ + std::min(agent_steps, total);
    if (!started_) {
      started_ = true;
      obey(timed([&] { return speculation_->start(); }));
    }
    while (committed_ < total) {
      settle();
      while (speculate()) settle();
      if (committed_ >= pause_at || committed_ == total) return committed_ == total;
      leap();
    }
    return true;
  }

  std::int64_t committed_agent_steps() const override { return committed_; }
  double makespan_sim_s() const override { return now_sim_s_; }
  double controller_wall_s() const override { return controller_wall_s_; }
  std::int64_t sent_calls() const override { return last_request_; }
  const Timeline& timeline() const override { return timeline_; }
  const std::vector<double>& dispatched_sim_s() const override { return dispatched_sim_s_; }
  const std::vector<double>& committed_sim_s() const override { return committed_sim_s_; }

 private:
  struct CallState {
    RequestId request = 0;  // 0: not sent
    std::int32_t open_parents = 0;
    double sent_sim_s = 0, first_token_sim_s = 0, completed_sim_s = 0;
    std::int32_t instance = -1;
  };
  struct Execution {
    Step step = 0;
    std::vector<AgentId> agents;
    std::vector<ExecutionId> proceeds;  // of a resolution
    Digest mind = 0;                    // after a proceed
    std::vector<Digest> minds;          // after a resolution
    bool sure = false;
    double dispatched_sim_s = 0;
    std::size_t first_call = 0;
    std::vector<CallState> calls;
    std::size_t open_calls = 0;
  };

  std::size_t row(Step step, AgentId agent) const {
    return static_cast<std::size_t>(step) * static_cast<std::size_t>(trace_.agents) +
           static_cast<std::size_t>(agent);
  }
  // At the beginning of a step; agents stay in place in the last one.
  Position position(Step step, AgentId agent) const {
    const std::size_t at = 2 * row(std::min<Step>(step, trace_.steps - 1), agent);
    return {trace_.positions[at], trace_.positions[at + 1]};
  }

  template <class Question>
  auto timed(const Question& question) {
    const auto start = std::chrono::steady_clock::now();
    auto answer = question();
    controller_wall_s_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return answer;
  }

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
      speculation_->proceeded(id, execution.mind);
      return;
    }
    std::vector<Write> writes;
    const Step next = execution.step + 1;
    for (const AgentId agent : execution.agents) {
      writes.push_back({agent, Sighting{agent, position(next, agent), next}});
    }
    speculation_->resolved(id, {}, std::move(writes), {}, execution.minds);
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
          break;
        case Kind::RESOLVE:
          resolve(command);
          break;
        case Kind::PROCEED:
          proceed(command);
          break;
      }
    }
    learn();
    collect();
    for (AgentId agent = 0; agent < trace_.agents; ++agent) note_progress(agent);
  }

  // Judges again those who waited for `agent` to come nearer to their step.
  void note_progress(AgentId agent) {
    const auto index = static_cast<std::size_t>(agent);
    const Step next = speculation_->next_step(agent);
    if (next == next_[index]) return;
    next_[index] = next;
    unjudged_.insert(agent);
    for (const AgentId waiting : std::exchange(waiting_on_[index], {})) unjudged_.insert(waiting);
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
    execution.sure = command.sure;
    execution.dispatched_sim_s = now_sim_s_;
    const Question question{Question::Kind::ENTITIES, -1, position(command.step, agent),
                            options_.perception_radius};
    Reads reads{{question, speculation_->answer(question, command.step, command.sure)}};
    execution.mind = mind_after(command, reads.front().answer);
    observed_.emplace_back(command.id, std::move(reads));
    const std::size_t at = row(command.step, agent);
    execution.first_call = static_cast<std::size_t>(trace_.call_offsets[at]);
    execution.calls.resize(static_cast<std::size_t>(trace_.call_offsets[at + 1]) -
                           execution.first_call);
    execution.open_calls = execution.calls.size();
    if (execution.calls.empty()) {
      ended_.push_back(command.id);
      return;
    }
    const std::size_t last = execution.first_call + execution.calls.size();
    for (std::size_t call = execution.first_call; call < last; ++call) {
      CallState& state = execution.calls[call - execution.first_call];
      for (auto i = static_cast<std::size_t>(trace_.parent_offsets[call]);
           i < static_cast<std::size_t>(trace_.parent_offsets[call + 1]); ++i) {
        const auto parent = static_cast<std::size_t>(trace_.parents[i]);
        const bool own = parent >= execution.first_call && parent < last;
        if (own || !answered_[parent]) ++state.open_parents;
        if (!own && !answered_[parent]) children_[parent].emplace_back(command.id, call);
      }
      if (state.open_parents == 0) ready_.insert({call, command.id});
    }
  }

  // A mind is the digest of all that its agent has seen.
  Digest mind_after(const SpeculationCommand& command, const std::vector<Sighting>& seen) const {
    std::uint64_t digest = 0x9e3779b97f4a7c15u;
    const auto mix = [&](std::uint64_t value) {
      digest ^= value + 0x9e3779b97f4a7c15u + (digest << 6) + (digest >> 2);
      digest *= 0xff51afd7ed558ccdu;
      digest ^= digest >> 32;
    };
    mix(static_cast<std::uint64_t>(mind_before(command)));
    for (const Sighting& one : seen) {
      mix(static_cast<std::uint64_t>(one.entity));
      mix(static_cast<std::uint64_t>(one.digest));
    }
    return static_cast<Digest>(digest >> 1);
  }

  Digest mind_before(const SpeculationCommand& command) const {
    const AgentId agent = command.agents.front();
    if (command.mind == NO_EXECUTION) {
      const auto found = final_minds_.find(agent);
      return found == final_minds_.end() ? 0 : found->second;
    }
    const Execution& source = executions_.at(command.mind);
    const auto at = std::ranges::lower_bound(source.agents, agent) - source.agents.begin();
    return source.minds[static_cast<std::size_t>(at)];
  }

  void resolve(const SpeculationCommand& command) {
    Execution& execution = add(command);
    execution.proceeds = command.proceeds;
    for (const ExecutionId id : command.proceeds) {
      execution.minds.push_back(executions_.at(id).mind);
    }
    ended_.push_back(command.id);
  }

  void commit(const SpeculationCommand& command) {
    const auto found = executions_.find(command.id);
    const Execution& execution = found->second;
    for (std::size_t i = 0; i < execution.agents.size(); ++i) {
      const AgentId agent = execution.agents[i];
      const std::size_t at = row(command.step, agent);
      final_minds_[agent] = execution.minds[i];
      committed_sim_s_[at] = now_sim_s_;
      const auto proceed = executions_.find(execution.proceeds[i]);
      dispatched_sim_s_[at] = proceed->second.dispatched_sim_s;
      for (std::size_t j = 0; j < proceed->second.calls.size(); ++j) {
        const CallState& call = proceed->second.calls[j];
        const std::size_t index = proceed->second.first_call + j;
        timeline_.sent_sim_s[index] = call.sent_sim_s;
        timeline_.first_token_sim_s[index] = call.first_token_sim_s;
        timeline_.completed_sim_s[index] = call.completed_sim_s;
        timeline_.instance[index] = call.instance;
      }
      executions_.erase(proceed);
    }
    committed_ += static_cast<std::int64_t>(execution.agents.size());
    executions_.erase(found);
  }

  // Forgets the executions below the floor that were neither committed nor aborted.
  void collect() {
    while (!at_step_.empty() && at_step_.begin()->first < speculation_->floor()) {
      for (const ExecutionId id : at_step_.begin()->second) executions_.erase(id);
      at_step_.erase(at_step_.begin());
    }
  }

  void abort(ExecutionId id) {
    const auto found = executions_.find(id);
    if (found == executions_.end()) return;
    for (const CallState& call : found->second.calls) {
      if (call.request == 0 || !requests_.erase(call.request)) continue;
      instances_.abort(call.request, now_sim_s_);
    }
    executions_.erase(found);
  }

  void leap() {
    for (const auto& [call, id] : std::exchange(ready_, {})) submit(call, id);
    const double next_sim_s = instances_.next_event_sim_s();
    if (!std::isfinite(next_sim_s)) {
      throw std::logic_error("replay: no call is outstanding, yet agents have steps to run");
    }
    completions_.clear();
    instances_.advance(next_sim_s, completions_);
    now_sim_s_ = std::max(now_sim_s_, next_sim_s);
    for (const Completion& completion : completions_) {
      const auto found = requests_.find(completion.id);
      if (found == requests_.end()) continue;  // aborted
      const auto [id, call] = found->second;
      requests_.erase(found);
      complete(id, call, completion);
    }
  }

  void submit(std::size_t call, ExecutionId id) {
    const auto found = executions_.find(id);
    if (found == executions_.end()) return;
    Request request;
    request.prompt_tokens = trace_.prompt_tokens[call];
    request.output_tokens = trace_.output_tokens[call];
    if (trace_.prefix_id[call] >= 0 && trace_.prefix_tokens[call] > 0) {
      request.prefix = {{trace_.prefix_id[call], trace_.prefix_tokens[call]}};
    }
    if (options_.step_priority) request.priority = trace_.call_step[call];
    if (!found->second.sure) request.priority += SPECULATIVE;
    CallState& state = found->second.calls[call - found->second.first_call];
    state.request = ++last_request_;
    state.sent_sim_s = now_sim_s_;
    requests_[state.request] = {id, call};
    instances_.submit(state.request, request, now_sim_s_);
  }

  void complete(ExecutionId id, std::size_t call, const Completion& completion) {
    Execution& execution = executions_.at(id);
    CallState& state = execution.calls[call - execution.first_call];
    state.first_token_sim_s = completion.first_token_sim_s;
    state.completed_sim_s = completion.last_token_sim_s;
    state.instance = completion.instance;
    const std::size_t last = execution.first_call + execution.calls.size();
    for (std::size_t child = call + 1; child < last; ++child) {
      for (auto i = static_cast<std::size_t>(trace_.parent_offsets[child]);
           i < static_cast<std::size_t>(trace_.parent_offsets[child + 1]); ++i) {
        if (static_cast<std::size_t>(trace_.parents[i]) != call) continue;
        if (--execution.calls[child - execution.first_call].open_parents == 0) {
          ready_.insert({child, id});
        }
      }
    }
    if (!answered_[call]) {
      answered_[call] = true;
      const auto waiting = children_.find(call);
      if (waiting != children_.end()) {
        for (const auto& [other, child] : waiting->second) {
          const auto found = executions_.find(other);
          if (found == executions_.end()) continue;
          if (--found->second.calls[child - found->second.first_call].open_parents == 0) {
            ready_.insert({child, other});
          }
        }
        children_.erase(waiting);
      }
    }
    if (--execution.open_calls == 0) ended_.push_back(id);
  }

  // Lets agents run ahead; whether one does.
  bool speculate() {
    if (options_.risk_max < 0) return false;
    std::vector<AgentId> daring;
    for (const AgentId agent : speculation_->candidates()) {
      if (unjudged_.erase(agent) && dares(agent)) daring.push_back(agent);
    }
    if (daring.empty()) return false;
    obey(timed([&] { return speculation_->speculate(daring); }));
    return true;
  }

  bool dares(AgentId agent) {
    const Step step = next_[static_cast<std::size_t>(agent)];
    const Position here = position(step, agent);
    const double reach = std::max(options_.perception_radius, 2 * options_.max_velocity);
    double right = 1;
    for (AgentId other = 0; other < trace_.agents; ++other) {
      const Step behind = next_[static_cast<std::size_t>(other)];
      const Step lag = step - behind;
      if (lag <= 0) continue;
      const double distance = metric_.distance(here, position(behind, other));
      if (distance > reach + lag * options_.max_velocity) continue;
      const double chance =
          distance <= options_.perception_radius ? 1 : chances_.chance(distance, lag);
      right *= 1 - chance;
      if (1 - right <= options_.risk_max) continue;
      waiting_on_[static_cast<std::size_t>(other)].push_back(agent);
      return false;
    }
    return true;
  }

  void learn() {
    const Step floor = speculation_->floor();
    for (; learned_ < floor; ++learned_) {
      const AgentId observers = std::min<AgentId>(trace_.agents, OBSERVERS_MAX);
      for (AgentId i = 0; i < observers; ++i) {
        const auto spread = static_cast<std::int64_t>(i) * trace_.agents / observers;
        const auto agent = static_cast<AgentId>((spread + learned_) % trace_.agents);
        learn(agent, learned_);
      }
    }
  }

  void learn(AgentId agent, Step step) {
    const Position here = position(step, agent);
    const double reach = std::max(options_.perception_radius, 2 * options_.max_velocity);
    for (AgentId other = 0; other < trace_.agents; ++other) {
      if (other == agent) continue;
      const bool in_sight =
          metric_.perceives(here, position(step, other), options_.perception_radius);
      for (const Step lag : SightChances::LAGS) {
        if (lag > step) break;
        const double distance = metric_.distance(here, position(step - lag, other));
        if (distance <= options_.perception_radius) continue;
        if (distance <= reach + lag * options_.max_velocity) {
          chances_.add(distance, lag, in_sight);
        }
      }
    }
  }

  static constexpr std::int64_t SPECULATIVE = std::int64_t{1} << 32;  // added to a priority
  static constexpr AgentId OBSERVERS_MAX = 64;                        // learned from in a step

  TraceView trace_;
  InstancePool& instances_;
  M metric_;
  OptimisticOptions options_;
  std::unique_ptr<Speculation> speculation_;
  SightChances chances_;
  Step learned_ = 0;  // steps below it have been learned from

  std::unordered_map<ExecutionId, Execution> executions_;
  std::map<Step, std::vector<ExecutionId>> at_step_;
  std::unordered_map<AgentId, Digest> final_minds_;
  std::unordered_map<RequestId, std::pair<ExecutionId, std::size_t>> requests_;
  std::vector<bool> answered_;  // calls that an execution has completed
  // Call -> calls of other agents that wait for it.
  std::unordered_map<std::size_t, std::vector<std::pair<ExecutionId, std::size_t>>> children_;
  std::set<std::pair<std::size_t, ExecutionId>> ready_;  // calls to send, in the trace's order
  std::vector<std::pair<ExecutionId, Reads>> observed_;
  std::deque<ExecutionId> ended_;
  std::vector<Step> next_;
  std::set<AgentId> unjudged_;  // their risk may have changed
  std::vector<std::vector<AgentId>> waiting_on_;

  std::vector<Completion> completions_;
  Timeline timeline_;
  std::vector<double> dispatched_sim_s_, committed_sim_s_;
  RequestId last_request_ = 0;
  std::int64_t committed_ = 0;
  double now_sim_s_ = 0, controller_wall_s_ = 0;
  bool started_ = false;
};

}  // namespace

std::unique_ptr<TraceReplay> make_optimistic_replay(const TraceView& trace,
                                                         Controller& controller,
                                                         InstancePool& instances,
                                                         const Metric& metric,
                                                         const OptimisticOptions& options) {
  return std::visit(
      [&](const auto& chosen) -> std::unique_ptr<TraceReplay> {
        using M = std::decay_t<decltype(chosen)>;
        return std::make_unique<OptimisticReplayOf<M>>(trace, controller, instances, chosen,
                                                       options);
      },
      metric);
}

}  // namespace metropolis
