// Replays a trace: pumps a controller's commands through virtual LLM instances.
//
// 1. A dispatched cluster sends the calls of all its agents' current step, each when all its
// parents
//    have completed. Parents may be calls of other agents in the same step, in whichever cluster;
//    as nobody waits for later steps, and parents form no cycle, these complete.
// 2. An agent is through with its step when all its calls have completed, a cluster when all its
//    agents are; then, and not before, the cluster commits and its agents move.
// 3. Agent-steps without calls take no virtual time: what costs time is the LLM.
// 4. What can be sent at the same instant is sent in the order of (step, agent, number).
#pragma once

#include <cstdint>
#include <queue>
#include <span>
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
};

struct ReplayOptions {
  bool step_priority = true;         // a request's priority is its step; otherwise first come
  std::int64_t max_outstanding = 0;  // calls in flight at most; 0: no bound
};

// When each call was sent and completed, and where it ran; indexed like the trace's calls.
struct Timeline {
  std::vector<double> sent_sim_s;
  std::vector<double> completed_sim_s;
  std::vector<std::int32_t> instance;
};

// Throws std::invalid_argument that names the column, and the call where there is one, unless the
// columns agree in length, calls lie in the order of (step, agent), and parents lead back to calls
// without any.
void check_trace(const TraceView& trace);

class Replay {
 public:
  // Everything is borrowed and must outlive the replay, and nobody else may use it. Throws
  // std::invalid_argument for a trace that check_trace refuses, a controller of other agents or
  // steps than the trace's, and instances with something to do.
  Replay(const TraceView& trace, Controller& controller, InstancePool& instances,
         const ReplayOptions& options);

  // Goes on until about `agent_steps` more have committed, at least 1; true when all have.
  // Throws std::invalid_argument for what controller and instances refuse, and std::logic_error if
  // nothing can ever happen again although agents have steps to run; it cannot go on after that.
  bool run(std::int64_t agent_steps);

  std::int64_t committed_agent_steps() const { return committed_; }
  double makespan_sim_s() const { return now_sim_s_; }
  double controller_wall_s() const { return controller_wall_s_; }
  const Timeline& timeline() const { return timeline_; }
  // (steps * agents): when each agent-step was dispatched and committed.
  const std::vector<double>& dispatched_sim_s() const { return dispatched_sim_s_; }
  const std::vector<double>& committed_sim_s() const { return committed_sim_s_; }

 private:
  struct Cluster {
    Step step = 0;
    std::size_t unfinished = 0;
    std::vector<AgentId> agents;
  };

  std::size_t row(Step step, AgentId agent) const {
    return static_cast<std::size_t>(step) * static_cast<std::size_t>(trace_.agents) +
           static_cast<std::size_t>(agent);
  }
  bool run_until(std::int64_t pause_at);
  void dispatch();
  void commit(std::size_t slot);
  void offer(std::size_t call);
  void submit(std::size_t call);
  void submit_offered();
  void complete(std::size_t call);
  void finish_agent(AgentId agent);

  TraceView trace_;
  Controller& controller_;
  InstancePool& instances_;
  ReplayOptions options_;

  std::vector<Cluster> clusters_;
  std::vector<std::size_t> free_slots_;
  std::queue<std::size_t> finished_;        // slots of clusters that can commit
  std::vector<std::size_t> slot_of_;        // of each agent
  std::vector<Step> step_of_;               // of each agent
  std::vector<std::int64_t> open_calls_;    // of each agent, in its current step
  std::vector<std::int32_t> open_parents_;  // of each call
  // Calls that can be sent: smallest index first, that is by step, agent and number.
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> offered_;

  Dispatches dispatches_;
  std::vector<Position> moved_;
  std::vector<Completion> completions_;
  Timeline timeline_;
  std::vector<double> dispatched_sim_s_;
  std::vector<double> committed_sim_s_;
  std::vector<std::int64_t> child_offsets_;  // the inverse of parents
  std::vector<std::size_t> children_;
  std::int64_t committed_ = 0;
  double now_sim_s_ = 0;
  double controller_wall_s_ = 0;
  bool started_ = false;
  bool broken_ = false;  // an exception has ended run()
};

}  // namespace metropolis
