#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <stdexcept>
#include <string>
#include <utility>

#include "metropolis/workload.hpp"

namespace metropolis {
namespace {

void check_length(std::size_t length, std::size_t expected, bool optional, const char* column) {
  if (length == expected || (optional && length == 0)) return;
  throw std::invalid_argument("column " + std::string(column) + " has " + std::to_string(length) +
                              " rows, arrival_sim_s has " + std::to_string(expected));
}

template <typename T>
T value_or(std::span<const T> column, std::size_t row, T fallback) {
  return column.empty() ? fallback : column[row];
}

void check_columns(const Workload& workload) {
  const std::size_t n = workload.arrival_sim_s.size();
  check_length(workload.prompt_tokens.size(), n, false, "prompt_tokens");
  check_length(workload.output_tokens.size(), n, false, "output_tokens");
  check_length(workload.priority.size(), n, true, "priority");
  check_length(workload.prefix_id.size(), n, true, "prefix_id");
  check_length(workload.prefix_tokens.size(), n, true, "prefix_tokens");
  check_length(workload.parent.size(), n, true, "parent");
  for (std::size_t row = 1; row < n; ++row) {
    if (!(workload.arrival_sim_s[row] >= workload.arrival_sim_s[row - 1])) {
      throw std::invalid_argument("arrival_sim_s of row " + std::to_string(row) +
                                  " is before that of the row above; arrivals must ascend");
    }
  }
  for (std::size_t row = 0; row < workload.parent.size(); ++row) {
    const std::int64_t parent = workload.parent[row];
    if (parent >= -1 && parent < static_cast<std::int64_t>(row)) continue;
    throw std::invalid_argument("parent of row " + std::to_string(row) + " is " +
                                std::to_string(parent) + "; it must be an earlier row, or -1");
  }
}

void check_options(const Workload& workload, const WorkloadOptions& how) {
  if (how.concurrency < 0 || (how.concurrency > 0 && !workload.parent.empty())) {
    throw std::invalid_argument("concurrency is " + std::to_string(how.concurrency) +
                                ", but must be at least 0, and 0 for requests with parents");
  }
}

class Run {
 public:
  Run(const Profile& profile, const InstancePoolOptions& options, const Workload& workload,
      const WorkloadOptions& how)
      : workload_(workload), how_(how), instances_(options.instances), pool_(profile, options) {
    constexpr double never = std::numeric_limits<double>::infinity();
    const std::size_t n = workload.arrival_sim_s.size();
    result_.submitted_sim_s.assign(n, never);
    result_.first_token_sim_s.assign(n, never);
    result_.last_token_sim_s.assign(n, never);
    result_.instance.assign(n, -1);
    result_.generated_tokens.assign(n, 0);
    add_children();
  }

  WorkloadResult run() {
    while (!ready_.empty()) {
      const auto [ready_sim_s, row] = ready_.top();
      if (must_advance_before(ready_sim_s)) {
        now_sim_s_ = std::max(now_sim_s_, pool_.next_event_sim_s());
        if (now_sim_s_ > how_.until_sim_s) break;
        collect(now_sim_s_);
        continue;
      }
      now_sim_s_ = has_begun_ ? std::max(now_sim_s_, ready_sim_s) : ready_sim_s;
      has_begun_ = true;
      if (now_sim_s_ > how_.until_sim_s) break;
      ready_.pop();
      submit(row);
      if (ready_.empty()) wait_for_children();
    }
    collect(how_.until_sim_s);
    finish();
    return std::move(result_);
  }

 private:
  using Ready = std::pair<double, std::size_t>;  // time, row

  void add_children() {
    const std::size_t n = workload_.arrival_sim_s.size();
    next_sibling_.assign(workload_.parent.size(), n);
    first_child_.assign(workload_.parent.size(), n);
    for (std::size_t row = n; row-- > 0;) {
      const std::int64_t parent = value_or<std::int64_t>(workload_.parent, row, -1);
      if (parent < 0) {
        ready_.emplace(workload_.arrival_sim_s[row], row);
        continue;
      }
      ++waiting_children_;
      next_sibling_[row] = first_child_[static_cast<std::size_t>(parent)];
      first_child_[static_cast<std::size_t>(parent)] = row;
    }
  }

  // Whether a request may complete before `ready_sim_s` on which the next one depends: its parent,
  // or, with limited concurrency, any request.
  bool must_advance_before(double ready_sim_s) {
    if (how_.concurrency > 0) {
      if (has_begun_) collect(std::max(now_sim_s_, ready_sim_s));
      return pool_.outstanding() >= how_.concurrency;
    }
    return waiting_children_ > 0 && pool_.next_event_sim_s() <= ready_sim_s;
  }

  void wait_for_children() {
    while (ready_.empty() && waiting_children_ > 0 && pool_.outstanding() > 0) {
      now_sim_s_ = std::max(now_sim_s_, pool_.next_event_sim_s());
      if (now_sim_s_ > how_.until_sim_s) return;
      collect(now_sim_s_);
    }
  }

  void submit(std::size_t row) {
    Request request;
    request.prompt_tokens = workload_.prompt_tokens[row];
    request.output_tokens = workload_.output_tokens[row];
    request.priority = value_or<std::int64_t>(workload_.priority, row, 0);
    const std::int64_t prefix_id = value_or<std::int64_t>(workload_.prefix_id, row, -1);
    const std::int32_t prefix_tokens = value_or<std::int32_t>(workload_.prefix_tokens, row, 0);
    if (prefix_id >= 0 && prefix_tokens != 0) request.prefix.push_back({prefix_id, prefix_tokens});
    pool_.submit(static_cast<RequestId>(row), request, now_sim_s_);
    result_.submitted_sim_s[row] = now_sim_s_;
  }

  void collect(double until_sim_s) {
    completions_.clear();
    pool_.advance(until_sim_s, completions_);
    for (const Completion& c : completions_) {
      const auto row = static_cast<std::size_t>(c.id);
      result_.first_token_sim_s[row] = c.first_token_sim_s;
      result_.last_token_sim_s[row] = c.last_token_sim_s;
      result_.instance[row] = c.instance;
      result_.generated_tokens[row] = c.output_tokens;
      if (first_child_.empty()) continue;
      for (std::size_t child = first_child_[row]; child < next_sibling_.size();
           child = next_sibling_[child]) {
        ready_.emplace(std::max(workload_.arrival_sim_s[child], c.last_token_sim_s), child);
        --waiting_children_;
      }
    }
  }

  void finish() {
    for (std::int32_t i = 0; i < instances_; ++i) {
      result_.busy_sim_s += pool_.busy_sim_s(i);
      if (pool_.outstanding() == 0) continue;
      for (const auto& begun : {pool_.progress(i), pool_.preempted(i)}) {
        for (const Progress& each : begun) {
          result_.generated_tokens[static_cast<std::size_t>(each.id)] = each.output_tokens;
        }
      }
    }
    result_.preemptions = pool_.preemptions();
  }

  const Workload& workload_;
  const WorkloadOptions& how_;
  const std::int32_t instances_;
  InstancePool pool_;
  WorkloadResult result_;
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready_;
  std::vector<std::size_t> first_child_, next_sibling_;  // n: none; empty without parents
  std::int64_t waiting_children_ = 0;
  std::vector<Completion> completions_;
  double now_sim_s_ = 0;
  bool has_begun_ = false;
};

}  // namespace

WorkloadResult run_workload(const Profile& profile, const InstancePoolOptions& options,
                            const Workload& workload, const WorkloadOptions& how) {
  check_columns(workload);
  check_options(workload, how);
  return Run(profile, options, workload, how).run();
}

}  // namespace metropolis
