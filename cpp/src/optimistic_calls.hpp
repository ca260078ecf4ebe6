// The calls of the executions of an optimistic replay: sends them, in the order of their parents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "metropolis/instance.hpp"
#include "metropolis/replay.hpp"
#include "metropolis/speculation.hpp"

namespace metropolis {

class OptimisticCalls {
 public:
  // The arguments are borrowed. The times of committed calls go into `timeline`.
  OptimisticCalls(const TraceView& trace, InstancePool& instances, Timeline& timeline,
                  bool step_priority);

  // Adds the calls of the execution of an agent-step; returns whether there are any.
  bool add(ExecutionId id, Step step, AgentId agent, bool sure);
  // Forgets the execution's calls; the answers to those in flight are ignored.
  void abort(ExecutionId id);
  // The execution is sure now: its calls that wait at an instance are sent again, with a priority
  // before that of speculative calls.
  void promote(ExecutionId id);
  // Writes the times of the execution's calls to the timeline, and forgets the calls.
  void commit(ExecutionId id);

  // Sends all calls that can be sent, and leaps to the next completion, whose time it returns.
  // Appends to `ended` the executions whose calls have all completed. Throws std::logic_error if no
  // call is in flight.
  double leap(std::vector<ExecutionId>& ended);

  // The number of calls sent; a call that promote() sent again counts once.
  std::int64_t sent() const { return last_request_ - promoted_; }

 private:
  struct Call {
    RequestId request = 0;  // 0: not sent
    std::int32_t open_parents = 0;
    double sent_sim_s = 0, first_token_sim_s = 0, preempted_sim_s = 0, completed_sim_s = 0;
    std::int32_t instance = -1;
  };
  struct Calls {  // the calls of one execution: those of the trace from index `first` on
    std::size_t first = 0;
    bool sure = false;
    std::size_t open = 0;
    std::vector<Call> calls;

    bool has(std::size_t call) const { return call >= first && call < first + calls.size(); }
    Call& at(std::size_t call) { return calls[call - first]; }
  };
  using Sent = std::pair<ExecutionId, std::size_t>;

  void submit(std::size_t call, ExecutionId id);
  void complete(ExecutionId id, std::size_t call, const Completion& completion);
  void answered(ExecutionId id, std::size_t child);

  TraceView trace_;
  InstancePool& instances_;
  Timeline& timeline_;
  bool step_priority_;
  std::unordered_map<ExecutionId, Calls> executions_;
  std::unordered_map<RequestId, Sent> requests_;
  std::vector<bool> answered_;  // calls that an execution has completed
  // Call -> calls of other agents that wait for it.
  std::unordered_map<std::size_t, std::vector<Sent>> children_;
  std::set<std::pair<std::size_t, ExecutionId>> ready_;  // to send, in the trace's order
  std::vector<Completion> completions_;
  RequestId last_request_ = 0;
  std::int64_t promoted_ = 0;  // the number of requests that promote() sent again
  double now_sim_s_ = 0;
};

}  // namespace metropolis
