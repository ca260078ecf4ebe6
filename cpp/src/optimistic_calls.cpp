#include "optimistic_calls.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace metropolis {

namespace {

constexpr std::int64_t SPECULATIVE = std::int64_t{1} << 32;  // added to a priority

}  // namespace

OptimisticCalls::OptimisticCalls(const TraceView& trace, InstancePool& instances,
                                 Timeline& timeline, bool step_priority)
    : trace_(trace),
      instances_(instances),
      timeline_(timeline),
      step_priority_(step_priority),
      answered_(trace.prompt_tokens.size()) {}

bool OptimisticCalls::add(ExecutionId id, Step step, AgentId agent, bool sure) {
  const auto [first, end] = trace_.calls_of(step, agent);
  if (first == end) return false;
  Calls& added = executions_[id];
  added = {first, sure, end - first, std::vector<Call>(end - first)};
  for (std::size_t call = first; call < end; ++call) {
    for (const std::int64_t index : trace_.parents_of(call)) {
      const auto parent = static_cast<std::size_t>(index);
      if (!added.has(parent)) {
        if (answered_[parent]) continue;
        children_[parent].emplace_back(id, call);
      }
      ++added.at(call).open_parents;
    }
    if (added.at(call).open_parents == 0) ready_.insert({call, id});
  }
  return true;
}

void OptimisticCalls::abort(ExecutionId id) {
  const auto found = executions_.find(id);
  if (found == executions_.end()) return;
  for (const Call& call : found->second.calls) {
    if (requests_.erase(call.request)) instances_.abort(call.request, now_sim_s_);
  }
  executions_.erase(found);
}

void OptimisticCalls::promote(ExecutionId id) {
  const auto found = executions_.find(id);
  if (found == executions_.end() || found->second.sure) return;
  Calls& calls = found->second;
  calls.sure = true;
  for (std::size_t i = 0; i < calls.calls.size(); ++i) {
    const RequestId request = calls.calls[i].request;
    if (!requests_.contains(request) || !instances_.waits(request)) continue;
    requests_.erase(request);
    instances_.abort(request, now_sim_s_);
    ready_.insert({calls.first + i, id});
  }
}

void OptimisticCalls::commit(ExecutionId id) {
  const auto found = executions_.find(id);
  if (found == executions_.end()) return;
  for (std::size_t i = 0; i < found->second.calls.size(); ++i) {
    const Call& call = found->second.calls[i];
    const std::size_t index = found->second.first + i;
    timeline_.sent_sim_s[index] = call.sent_sim_s;
    timeline_.first_token_sim_s[index] = call.first_token_sim_s;
    timeline_.preempted_sim_s[index] = call.preempted_sim_s;
    timeline_.completed_sim_s[index] = call.completed_sim_s;
    timeline_.instance[index] = call.instance;
  }
  executions_.erase(found);
}

double OptimisticCalls::leap(std::vector<ExecutionId>& ended) {
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
    if (completion.id < 1 || completion.id > last_request_) {
      throw std::invalid_argument("replay: request " + std::to_string(completion.id) +
                                  " was not submitted by this replay");
    }
    if (found == requests_.end()) continue;  // aborted
    const auto [id, call] = found->second;
    requests_.erase(found);
    complete(id, call, completion);
    if (executions_.at(id).open == 0) ended.push_back(id);
  }
  return now_sim_s_;
}

void OptimisticCalls::submit(std::size_t call, ExecutionId id) {
  const auto found = executions_.find(id);
  if (found == executions_.end()) return;  // aborted
  Request request = trace_.request(call, step_priority_);
  if (!found->second.sure) request.priority += SPECULATIVE;
  Call& sent = found->second.at(call);
  if (sent.request == 0) {
    sent.sent_sim_s = now_sim_s_;
  } else {
    ++promoted_;
  }
  sent.request = ++last_request_;
  requests_[sent.request] = {id, call};
  instances_.submit(sent.request, request, now_sim_s_);
}

void OptimisticCalls::complete(ExecutionId id, std::size_t call, const Completion& completion) {
  Calls& calls = executions_.at(id);
  --calls.open;
  Call& completed = calls.at(call);
  completed.first_token_sim_s = completion.first_token_sim_s;
  completed.preempted_sim_s = completion.preempted_sim_s;
  completed.completed_sim_s = completion.last_token_sim_s;
  completed.instance = completion.instance;
  for (std::size_t child = calls.first; calls.has(child); ++child) {
    for (const std::int64_t parent : trace_.parents_of(child)) {
      if (static_cast<std::size_t>(parent) == call) answered(id, child);
    }
  }
  if (answered_[call]) return;
  answered_[call] = true;
  const auto waiting = children_.find(call);
  if (waiting == children_.end()) return;
  for (const auto& [other, child] : waiting->second) answered(other, child);
  children_.erase(waiting);
}

// One more parent of `child` has been answered.
void OptimisticCalls::answered(ExecutionId id, std::size_t child) {
  const auto found = executions_.find(id);
  if (found == executions_.end()) return;  // aborted
  if (--found->second.at(child).open_parents == 0) ready_.insert({child, id});
}

}  // namespace metropolis
