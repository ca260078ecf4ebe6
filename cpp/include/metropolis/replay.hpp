// Replays a trace: runs a controller's commands on simulated LLM instances.
//
// 1. A dispatched cluster sends the calls of its agents' current step, each when all its parents
//    have completed. Parents may be calls of other agents in the same step, in any cluster. They
//    complete, because no agent waits for later steps and parents form no cycle.
// 2. An agent finishes its step when all its calls have completed, a cluster when all its agents
//    have; only then does the cluster commit and do its agents move.
// 3. Agent-steps without calls take no virtual time: only LLM calls do.
// 4. Calls that can be sent at the same instant are sent in the order of (step, agent, number).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "metropolis/controller.hpp"
#include "metropolis/instance.hpp"
#include "metropolis/types.hpp"

namespace metropolis {

// Borrowed columns of a trace; n calls sorted by (step, agent, seq).
struct TraceView {
  Step steps = 0;
  AgentId agents = 0;
  std::span<const float> positions;              // (steps, agents, 2)
  std::span<const std::int64_t> call_offsets;    // (steps * agents + 1)
  std::span<const Step> call_step;               // (n)
  std::span<const AgentId> call_agent;           // (n)
  std::span<const std::int64_t> parent_offsets;  // (n + 1)
  std::span<const std::int64_t> parents;         // indices of calls of the same step
  std::span<const std::int32_t> prompt_tokens;
  std::span<const std::int32_t> output_tokens;
  std::span<const std::int64_t> prefix_id;
  std::span<const std::int32_t> prefix_tokens;
  // Dependencies by value: an agent-step depends on the steps `value_ago` ago of the agents
  // `value_writers`. No offsets: they are unknown.
  std::span<const std::int64_t> value_offsets{};  // (steps * agents + 1)
  std::span<const AgentId> value_writers{};
  std::span<const Step> value_ago{};

  bool knows_values() const { return !value_offsets.empty(); }
  // Calls visit(writer, ago) for each dependency that is not from before the trace.
  template <class Visit>
  void for_each_dependency(Step step, AgentId agent, const Visit& visit) const {
    if (!knows_values()) return;
    const auto first = static_cast<std::size_t>(value_offsets[row(step, agent)]);
    const auto end = static_cast<std::size_t>(value_offsets[row(step, agent) + 1]);
    for (std::size_t i = first; i < end; ++i) {
      if (value_ago[i] <= step) visit(value_writers[i], value_ago[i]);
    }
  }
  // The first call of an agent-step, and the one after its last.
  std::pair<std::size_t, std::size_t> calls_of(Step step, AgentId agent) const {
    const std::size_t at = row(step, agent);
    return {static_cast<std::size_t>(call_offsets[at]),
            static_cast<std::size_t>(call_offsets[at + 1])};
  }
  std::span<const std::int64_t> parents_of(std::size_t call) const {
    const auto first = static_cast<std::size_t>(parent_offsets[call]);
    return parents.subspan(first, static_cast<std::size_t>(parent_offsets[call + 1]) - first);
  }
  std::size_t row(Step step, AgentId agent) const {
    return static_cast<std::size_t>(step) * static_cast<std::size_t>(agents) +
           static_cast<std::size_t>(agent);
  }
  // At the beginning of a step; in the last one agents stay in place.
  Position position(Step step, AgentId agent) const {
    const std::size_t at = 2 * row(std::min<Step>(step, steps - 1), agent);
    return {positions[at], positions[at + 1]};
  }
  // The request of a call; its priority is its step, or 0 for FCFS.
  Request request(std::size_t call, bool step_priority) const {
    Request request;
    request.prompt_tokens = prompt_tokens[call];
    request.output_tokens = output_tokens[call];
    if (prefix_id[call] >= 0 && prefix_tokens[call] > 0) {
      request.prefix = {{prefix_id[call], prefix_tokens[call]}};
    }
    if (step_priority) request.priority = call_step[call];
    return request;
  }
};

struct ReplayOptions {
  bool step_priority = true;         // a request's priority is its step; otherwise FCFS
  std::int64_t max_outstanding = 0;  // maximum number of calls in flight; 0: unlimited
};

// Times of sending, first token and completion, the time waited after preemptions since the first
// token, and the instance, of each call; indexed like the trace's calls.
struct Timeline {
  std::vector<double> sent_sim_s;
  std::vector<double> first_token_sim_s;
  std::vector<double> preempted_sim_s;
  std::vector<double> completed_sim_s;
  std::vector<std::int32_t> instance;
};

// Throws std::invalid_argument that names the column, and the call if there is one, unless column
// lengths agree, calls are sorted by (step, agent), and parents form no cycle.
void check_trace(const TraceView& trace);

// A replay in progress.
class TraceReplay {
 public:
  virtual ~TraceReplay() = default;

  // Runs until at least `agent_steps` (>= 1) more agent-steps have committed, or all; true when all
  // have. Throws std::invalid_argument for errors of controller and instances, and std::logic_error
  // if no event is left although agents have steps to run; it cannot continue after that.
  bool run(std::int64_t agent_steps);

  std::int64_t committed_agent_steps() const { return committed_; }
  double makespan_sim_s() const { return now_sim_s_; }
  double controller_wall_s() const { return controller_wall_s_; }
  // The calls sent so far, those of wrong executions included.
  std::int64_t sent_calls() const { return sent_; }
  const Timeline& timeline() const { return timeline_; }
  // (steps * agents): when each agent-step was dispatched and committed.
  const std::vector<double>& dispatched_sim_s() const { return dispatched_sim_s_; }
  const std::vector<double>& committed_sim_s() const { return committed_sim_s_; }
  // (steps * agents): the agent for which each waited last before it was dispatched, or NO_AGENT.
  const std::vector<AgentId>& blocked_by() const { return blocked_by_; }
  // (steps * agents): the smallest agent of the cluster in which each ran.
  const std::vector<AgentId>& cluster() const { return cluster_; }
  // (steps * agents): the number of wrong executions; empty if none can be wrong.
  const std::vector<std::int32_t>& wasted() const { return wasted_; }

 protected:
  // The arguments are borrowed, must outlive the replay, and must not be used elsewhere meanwhile.
  // Throws std::invalid_argument for a trace that check_trace refuses, for a controller of other
  // agents or steps than the trace's, and for instances that are not idle.
  TraceReplay(const TraceView& trace, Controller& controller, InstancePool& instances);

  virtual void run_until(std::int64_t pause_at) = 0;
  std::int64_t total_agent_steps() const {
    return static_cast<std::int64_t>(trace_.agents) * trace_.steps;
  }
  // The agent that `agent` waited for last, if it begins `step` now: the nearest, in a straight
  // line, of the agents that have just committed `step` or an earlier one. NO_AGENT: it has not
  // waited.
  AgentId awaited(Step step, AgentId agent) const;

  TraceView trace_;
  Controller& controller_;
  InstancePool& instances_;
  Timeline timeline_;
  std::vector<double> dispatched_sim_s_;
  std::vector<double> committed_sim_s_;
  std::vector<AgentId> blocked_by_;
  std::vector<AgentId> cluster_;
  std::vector<std::int32_t> wasted_;
  std::int64_t committed_ = 0;
  std::int64_t sent_ = 0;
  double now_sim_s_ = 0;
  double controller_wall_s_ = 0;
  bool started_ = false;
  struct AgentStep {
    Step step;
    AgentId agent;
  };
  std::vector<AgentStep> just_committed_;  // the commits that unblock the agents dispatched now

 private:
  bool broken_ = false;  // an exception has ended run()
};

class Replay final : public TraceReplay {
 public:
  Replay(const TraceView& trace, Controller& controller, InstancePool& instances,
         const ReplayOptions& options);

 private:
  struct Cluster {
    Step step = 0;
    std::size_t unfinished = 0;
    std::vector<AgentId> agents;
  };

  void run_until(std::int64_t pause_at) override;
  void dispatch();
  void commit(std::size_t slot);
  void enqueue_if_ready(std::size_t call);
  void submit(std::size_t call);
  void submit_ready();
  void complete(std::size_t call);
  void finish_agent(AgentId agent);

  ReplayOptions options_;

  std::vector<Cluster> clusters_;
  std::vector<std::size_t> free_slots_;
  std::queue<std::size_t> finished_;        // slots of clusters that can commit
  std::vector<std::size_t> slot_of_;        // the cluster of each agent, as its slot
  std::vector<Step> step_of_;               // the current step of each agent
  std::vector<std::int64_t> open_calls_;    // by agent: uncompleted calls of its current step
  std::vector<std::int32_t> open_parents_;  // by call: its uncompleted parents
  // Requests are numbered in the order of sending, as in a live run: it decides between
  // simultaneous ones.
  std::vector<std::size_t> call_of_;  // by request
  // Calls that can be sent, by index, which is the order of (step, agent, number).
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready_;

  Dispatches dispatches_;
  std::vector<Position> new_positions_;
  std::vector<Completion> completions_;
  std::vector<std::int64_t> child_offsets_;  // the inverse of parents
  std::vector<std::size_t> children_;
};

}  // namespace metropolis
