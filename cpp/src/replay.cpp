#include "metropolis/replay.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "stopwatch.hpp"

namespace metropolis {

namespace {

void check_controller_and_instances(const TraceView& trace, const Controller& controller,
                                    const InstancePool& instances) {
  if (controller.agents() != static_cast<std::size_t>(trace.agents) ||
      controller.target() != trace.steps) {
    throw std::invalid_argument("the controller runs " + std::to_string(controller.agents()) +
                                " agents to step " + std::to_string(controller.target()) +
                                ", the trace has " + std::to_string(trace.agents) + " agents and " +
                                std::to_string(trace.steps) + " steps");
  }
  if (instances.outstanding() != 0) {
    throw std::invalid_argument("the instances have " + std::to_string(instances.outstanding()) +
                                " requests already; a replay needs them idle");
  }
}

}  // namespace

TraceReplay::TraceReplay(const TraceView& trace, Controller& controller, InstancePool& instances)
    : trace_(trace), controller_(controller), instances_(instances) {
  check_trace(trace_);
  check_controller_and_instances(trace_, controller, instances);
  const std::size_t calls = trace_.prompt_tokens.size();
  timeline_.sent_sim_s.assign(calls, std::nan(""));
  timeline_.first_token_sim_s.assign(calls, std::nan(""));
  timeline_.preempted_sim_s.assign(calls, std::nan(""));
  timeline_.completed_sim_s.assign(calls, std::nan(""));
  timeline_.instance.assign(calls, -1);
  dispatched_sim_s_.assign(trace_.row(trace_.steps, 0), std::nan(""));
  committed_sim_s_ = dispatched_sim_s_;
  blocked_by_.assign(dispatched_sim_s_.size(), NO_AGENT);
  cluster_ = blocked_by_;
}

AgentId TraceReplay::awaited(Step step, AgentId agent) const {
  AgentId found = NO_AGENT;
  if (step == 0 || !(committed_sim_s_[trace_.row(step - 1, agent)] < now_sim_s_)) return found;
  double least = std::numeric_limits<double>::infinity();
  const Position here = trace_.position(step, agent);
  for (const AgentStep& other : just_committed_) {
    const Position there = trace_.position(other.step, other.agent);
    const double x = there.x - here.x, y = there.y - here.y;
    if (other.step <= step && other.agent != agent && x * x + y * y < least) {
      least = x * x + y * y;
      found = other.agent;
    }
  }
  return found;
}

bool TraceReplay::run(std::int64_t agent_steps) {
  if (agent_steps < 1) {
    throw std::invalid_argument("a replay cannot run " + std::to_string(agent_steps) +
                                " agent-steps; it needs at least 1");
  }
  if (broken_) throw std::invalid_argument("the replay has already failed");
  broken_ = true;
  run_until(committed_ + std::min(agent_steps, total_agent_steps() - committed_));
  broken_ = false;
  return committed_ == total_agent_steps();
}

Replay::Replay(const TraceView& trace, Controller& controller, InstancePool& instances,
               const ReplayOptions& options)
    : TraceReplay(trace, controller, instances), options_(options) {
  if (options.max_outstanding < 0) {
    throw std::invalid_argument("max_outstanding is " + std::to_string(options.max_outstanding) +
                                ", but must be at least 0");
  }
  const std::size_t calls = trace_.prompt_tokens.size();
  const auto agents = static_cast<std::size_t>(trace_.agents);
  slot_of_.resize(agents);
  step_of_.resize(agents);
  open_calls_.resize(agents);
  open_parents_.resize(calls);
  child_offsets_.assign(calls + 1, 0);
  for (const std::int64_t parent : trace_.parents) {
    ++child_offsets_[static_cast<std::size_t>(parent) + 1];
  }
  std::partial_sum(child_offsets_.begin(), child_offsets_.end(), child_offsets_.begin());
  children_.resize(trace_.parents.size());
  std::vector<std::int64_t> next(child_offsets_.begin(), child_offsets_.end());
  for (std::size_t call = 0; call < calls; ++call) {
    const auto parents = trace_.parents_of(call);
    open_parents_[call] = static_cast<std::int32_t>(parents.size());
    for (const std::int64_t parent : parents) {
      children_[static_cast<std::size_t>(next[static_cast<std::size_t>(parent)]++)] = call;
    }
  }
}

void Replay::run_until(std::int64_t pause_at) {
  if (!started_) {
    started_ = true;
    {
      const Stopwatch stopwatch(controller_wall_s_);
      controller_.start(dispatches_);
    }
    dispatch();
  }
  while (committed_ < total_agent_steps()) {
    while (!finished_.empty()) {
      const std::size_t slot = finished_.front();
      finished_.pop();
      commit(slot);
      if (committed_ >= pause_at) return;
    }
    if (committed_ == total_agent_steps()) return;
    submit_ready();
    const double next_sim_s = instances_.next_event_sim_s();
    if (!std::isfinite(next_sim_s)) {
      throw std::logic_error("replay: no call is outstanding, yet agents have steps to run");
    }
    completions_.clear();
    instances_.advance(next_sim_s, completions_);
    for (const Completion& completion : completions_) {
      const auto request = static_cast<std::size_t>(completion.id);
      if (request >= call_of_.size() ||
          timeline_.completed_sim_s[call_of_[request]] <= next_sim_s) {
        throw std::invalid_argument("replay: request " + std::to_string(completion.id) +
                                    " was not submitted by this replay");
      }
      const std::size_t call = call_of_[request];
      now_sim_s_ = completion.last_token_sim_s;
      timeline_.first_token_sim_s[call] = completion.first_token_sim_s;
      timeline_.preempted_sim_s[call] = completion.preempted_sim_s;
      timeline_.completed_sim_s[call] = completion.last_token_sim_s;
      timeline_.instance[call] = completion.instance;
      complete(call);
    }
  }
}

void Replay::dispatch() {
  for (const Dispatches::Cluster& command : dispatches_.clusters) {
    std::size_t slot;
    if (free_slots_.empty()) {
      slot = clusters_.size();
      clusters_.emplace_back();
    } else {
      slot = free_slots_.back();
      free_slots_.pop_back();
    }
    const auto members = dispatches_.members(command);
    clusters_[slot].step = command.step;
    clusters_[slot].unfinished = members.size();
    clusters_[slot].agents.assign(members.begin(), members.end());
    for (const AgentId agent : members) {
      const auto index = static_cast<std::size_t>(agent);
      const std::size_t at = trace_.row(command.step, agent);
      slot_of_[index] = slot;
      step_of_[index] = command.step;
      dispatched_sim_s_[at] = now_sim_s_;
      cluster_[at] = members.front();
      blocked_by_[at] = awaited(command.step, agent);
      const auto [first, end] = trace_.calls_of(command.step, agent);
      open_calls_[index] = static_cast<std::int64_t>(end - first);
      if (first == end) finish_agent(agent);
      for (std::size_t call = first; call < end; ++call) enqueue_if_ready(call);
    }
  }
  dispatches_.clear();
}

void Replay::commit(std::size_t slot) {
  const Step step = clusters_[slot].step;
  const std::vector<AgentId>& agents = clusters_[slot].agents;
  new_positions_.clear();
  just_committed_.clear();
  for (const AgentId agent : agents) {
    just_committed_.push_back({step, agent});
    new_positions_.push_back(trace_.position(step + 1, agent));
    committed_sim_s_[trace_.row(step, agent)] = now_sim_s_;
  }
  committed_ += static_cast<std::int64_t>(agents.size());
  {
    const Stopwatch stopwatch(controller_wall_s_);
    controller_.commit(agents, new_positions_, dispatches_);
  }
  free_slots_.push_back(slot);  // dispatch() may reuse it
  dispatch();
}

void Replay::enqueue_if_ready(std::size_t call) {
  const bool dispatched =
      !std::isnan(dispatched_sim_s_[trace_.row(trace_.call_step[call], trace_.call_agent[call])]);
  if (open_parents_[call] == 0 && dispatched) ready_.push(call);
}

void Replay::submit(std::size_t call) {
  timeline_.sent_sim_s[call] = now_sim_s_;
  call_of_.push_back(call);
  instances_.submit(sent_++, trace_.request(call, options_.step_priority), now_sim_s_);
}

void Replay::submit_ready() {
  const std::int64_t limit = options_.max_outstanding > 0
                                 ? options_.max_outstanding
                                 : std::numeric_limits<std::int64_t>::max();
  while (!ready_.empty() && instances_.outstanding() < limit) {
    submit(ready_.top());
    ready_.pop();
  }
}

void Replay::complete(std::size_t call) {
  for (auto i = static_cast<std::size_t>(child_offsets_[call]);
       i < static_cast<std::size_t>(child_offsets_[call + 1]); ++i) {
    --open_parents_[children_[i]];
    enqueue_if_ready(children_[i]);
  }
  const AgentId agent = trace_.call_agent[call];
  if (--open_calls_[static_cast<std::size_t>(agent)] == 0) finish_agent(agent);
}

void Replay::finish_agent(AgentId agent) {
  const std::size_t slot = slot_of_[static_cast<std::size_t>(agent)];
  if (--clusters_[slot].unfinished == 0) finished_.push(slot);
}

}  // namespace metropolis
