#include "metropolis/instance.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>

#include "instance_engine.hpp"
#include "metropolis/checks.hpp"

namespace metropolis {

using detail::ceil_div;
using detail::CostModel;
using detail::Engine;
using detail::NEVER;
using detail::Tournament;

namespace {

void check_options(const Profile& profile, const InstancePoolOptions& options) {
  if (options.decision_iterations < 1 ||
      options.decision_iterations > limits::DECISION_ITERATIONS_MAX) {
    throw std::invalid_argument(
        "decision_iterations is " + std::to_string(options.decision_iterations) +
        ", but must be at least 1 and at most " + std::to_string(limits::DECISION_ITERATIONS_MAX));
  }
  if (!(options.watermark >= 0 && options.watermark < 1)) {
    throw std::invalid_argument("watermark is " + format_number(options.watermark) +
                                ", but must be at least 0 and below 1");
  }
  if (std::int64_t{options.instances} * profile.block_tokens > limits::BLOCK_PHASES_MAX) {
    throw std::invalid_argument(std::to_string(options.instances) + " instances with blocks of " +
                                std::to_string(profile.block_tokens) +
                                " tokens; their product must be at most " +
                                std::to_string(limits::BLOCK_PHASES_MAX));
  }
  if (options.preemption != Preemption::RECOMPUTE &&
      !(profile.kv_bytes_per_token > 0 && profile.pcie_gb_per_s > 0 && profile.host_gb > 0)) {
    throw std::invalid_argument(
        "preemption by swap needs the profile fields kv_bytes_per_token, pcie_gb_per_s and "
        "host_gb");
  }
}

std::size_t checked_instances(const InstancePoolOptions& options) {
  if (options.instances < 1 || options.instances > limits::INSTANCES_MAX) {
    throw std::invalid_argument("a pool of " + std::to_string(options.instances) +
                                " instances; it needs at least 1 and at most " +
                                std::to_string(limits::INSTANCES_MAX));
  }
  return static_cast<std::size_t>(options.instances);
}

// The error in the segments of a prefix within `tokens` tokens; empty if there is none.
std::string flaw_of_prefix(const std::vector<Segment>& prefix, std::int64_t tokens) {
  for (const Segment& segment : prefix) {
    tokens -= segment.tokens;
    if (segment.tokens >= 1 && tokens >= 0) continue;
    return " has a prefix segment " + std::to_string(segment.id) + " of " +
           std::to_string(segment.tokens) + " tokens; it must have at least 1, and all together ";
  }
  return {};
}

// The error in the request's token counts; empty if there is none.
std::string flaw_of_tokens(const Request& request) {
  if (request.prompt_tokens < 1 || request.output_tokens < 1) {
    return " has " + std::to_string(request.prompt_tokens) + " prompt and " +
           std::to_string(request.output_tokens) + " output tokens; both must be at least 1";
  }
  const std::int64_t tokens = std::int64_t{request.prompt_tokens} + request.output_tokens;
  if (tokens > limits::REQUEST_TOKENS_MAX) {
    return " has " + std::to_string(tokens) + " tokens; it may have " +
           std::to_string(limits::REQUEST_TOKENS_MAX);
  }
  if (!request.prefix.empty()) {
    const std::string flaw = flaw_of_prefix(request.prefix, tokens);
    if (!flaw.empty()) return flaw + "no more than prompt and output";
  }
  if (request.reused_tokens < 0 || request.reused_tokens >= request.prompt_tokens) {
    return " reuses " + std::to_string(request.reused_tokens) + " of " +
           std::to_string(request.prompt_tokens) +
           " prompt tokens; at least one must be left to compute, and none may be negative";
  }
  if (!(request.reused_share >= 0 && request.reused_share <= 1)) {
    return " has a reused_share of " + format_number(request.reused_share) +
           "; it must be from 0 to 1";
  }
  return {};
}

// The reason why an idle instance cannot serve the request; empty if it can.
std::string flaw_of_size(const Profile& profile, const Request& request,
                         std::int32_t decision_iterations) {
  if (const std::string flaw = flaw_of_tokens(request); !flaw.empty()) return flaw;
  // All tokens but the last, plus those possibly decoded in vain before the next decision.
  const std::int64_t kv =
      std::int64_t{request.prompt_tokens} + request.output_tokens - 1 + decision_iterations - 1;
  const std::int64_t blocks = profile.kv_capacity_tokens / profile.block_tokens;
  if (ceil_div(kv, profile.block_tokens) <= blocks) return {};
  return " needs " + std::to_string(kv) + " KV tokens; an instance holds " +
         std::to_string(blocks * profile.block_tokens);
}

std::string request_name(RequestId id) {
  return "request " + std::to_string(id);
}

}  // namespace

struct InstancePool::Impl {
  Impl(const Profile& p, const InstancePoolOptions& options)
      : profile(p),
        decision_iterations(options.decision_iterations),
        next_events(checked_instances(options), NEVER),
        loads(checked_instances(options), 0) {
    const CostModel cost(profile);
    check_options(profile, options);
    for (std::int32_t i = 0; i < options.instances; ++i) {
      engines.emplace_back(profile, cost, options, i);
    }
  }

  void check(RequestId id, const Request& request, double at_sim_s) const {
    if (const auto flaw = flaw_of_size(profile, request, decision_iterations); !flaw.empty()) {
      throw std::invalid_argument(request_name(id) + flaw);
    }
    check_time([id] { return request_name(id) + " is submitted"; }, at_sim_s);
  }

  // `what()` names what happens at that time.
  template <typename What>
  void check_time(const What& what, double at_sim_s) const {
    if (!(std::abs(at_sim_s) <= limits::SIM_S_MAX)) {
      throw std::invalid_argument(what() + " at " + format_number(at_sim_s) +
                                  " s; virtual time lies within ±" +
                                  format_number(limits::SIM_S_MAX));
    }
    if (at_sim_s >= now_sim_s) return;
    throw std::invalid_argument(what() + " at " + std::to_string(at_sim_s) +
                                " s, but the pool has reached " + std::to_string(now_sim_s) + " s");
  }

  static void check_clock(double sim_s) {
    if (sim_s <= limits::SIM_S_MAX) return;
    throw std::invalid_argument("virtual time would reach " + format_number(sim_s) +
                                " s; it ends at " + format_number(limits::SIM_S_MAX) + " s");
  }

  const Engine& engine(std::int32_t instance) const {
    if (instance >= 0 && static_cast<std::size_t>(instance) < engines.size()) {
      return engines[static_cast<std::size_t>(instance)];
    }
    throw std::invalid_argument("there is no instance " + std::to_string(instance) +
                                "; the pool has " + std::to_string(engines.size()));
  }

  // The engine that keeps KV of the request, or else the least loaded one.
  std::size_t instance_for(RequestId id) const {
    const auto keeps = [id](const Engine& engine) { return engine.keeps(id); };
    const auto found = std::find_if(engines.begin(), engines.end(), keeps);
    return found == engines.end() ? loads.best()
                                  : static_cast<std::size_t>(found - engines.begin());
  }

  // Processes all events up to and including `until_sim_s`, in order of time.
  void process_until(double until_sim_s) {
    while (next_events.best_value() <= until_sim_s && next_events.best_value() < NEVER) {
      const std::size_t i = next_events.best();
      const std::size_t before = unreported.size();
      check_clock(next_events.best_value());
      now_sim_s = next_events.best_value();
      engines[i].step(unreported);
      update_after_event(i, before);
    }
    if (until_sim_s < NEVER) now_sim_s = std::max(now_sim_s, until_sim_s);
  }

  // Call it after an event of engine i; `before` is the number of completions before the event.
  void update_after_event(std::size_t i, std::size_t before) {
    next_events.set(i, engines[i].next_event_sim_s());
    if (unreported.size() == before) return;
    loads.set(i, loads[i] - static_cast<std::int64_t>(unreported.size() - before));
    for (std::size_t k = before; k < unreported.size(); ++k) sort_in(k);
  }

  // Sorts completion k by id: completions of one instant may come from several instances.
  void sort_in(std::size_t k) {
    for (; k > 0 && unreported[k - 1].last_token_sim_s == unreported[k].last_token_sim_s &&
           unreported[k - 1].id > unreported[k].id;
         --k) {
      std::swap(unreported[k - 1], unreported[k]);
    }
  }

  Profile profile;
  std::int32_t decision_iterations;
  std::deque<Engine> engines;
  Tournament<double> next_events;
  Tournament<std::int64_t> loads;  // outstanding requests by instance
  std::deque<Completion> unreported;
  std::int64_t outstanding = 0;
  double now_sim_s = -NEVER;
};

InstancePool::InstancePool(const Profile& profile, const InstancePoolOptions& options)
    : impl_(std::make_unique<Impl>(profile, options)) {}
InstancePool::~InstancePool() = default;
InstancePool::InstancePool(InstancePool&&) noexcept = default;

void InstancePool::submit(RequestId id, const Request& request, double now_sim_s) {
  impl_->check(id, request, now_sim_s);
  impl_->process_until(now_sim_s);
  const std::size_t i = impl_->instance_for(id);
  Engine& engine = impl_->engines[i];
  engine.enqueue(id, request, now_sim_s);
  impl_->next_events.set(i, engine.next_event_sim_s());
  impl_->loads.set(i, impl_->loads[i] + 1);
  ++impl_->outstanding;
}

void InstancePool::abort(RequestId id, double now_sim_s, bool keep) {
  impl_->check_time([id] { return request_name(id) + " is aborted"; }, now_sim_s);
  const auto has = [id](const Engine& engine) { return engine.may_abort(id); };
  if (std::ranges::any_of(impl_->engines, has)) {
    impl_->process_until(now_sim_s);
    const std::size_t before = impl_->unreported.size();
    for (std::size_t i = 0; i < impl_->engines.size(); ++i) {
      if (!impl_->engines[i].abort(id, keep, now_sim_s, impl_->unreported)) continue;
      impl_->update_after_event(i, before);
      impl_->process_until(now_sim_s);  // the current iteration may end now
      return;
    }
  }
  throw std::invalid_argument(request_name(id) +
                              " cannot be aborted: it is unknown, has ended or has been aborted");
}

void InstancePool::discard(RequestId id, double now_sim_s) {
  impl_->check_time([id] { return request_name(id) + " is discarded"; }, now_sim_s);
  impl_->process_until(now_sim_s);
  for (Engine& engine : impl_->engines) engine.discard(id);
}

void InstancePool::reprioritize(const Priorities& priorities, double now_sim_s) {
  impl_->check_time([] { return std::string("requests are reprioritized"); }, now_sim_s);
  impl_->process_until(now_sim_s);
  for (std::size_t i = 0; i < impl_->engines.size(); ++i) {
    impl_->engines[i].reprioritize(priorities, now_sim_s);
    impl_->next_events.set(i, impl_->engines[i].next_event_sim_s());
  }
}

bool InstancePool::waits(RequestId id) const {
  return std::ranges::any_of(impl_->engines, [id](const Engine& one) { return one.waits(id); });
}

double InstancePool::next_event_sim_s() const {
  return impl_->unreported.empty() ? impl_->next_events.best_value()
                                   : impl_->unreported.front().last_token_sim_s;
}

void InstancePool::advance(double until_sim_s, std::vector<Completion>& out) {
  if (std::isnan(until_sim_s)) throw std::invalid_argument("time cannot advance to NaN");
  if (std::isfinite(until_sim_s)) Impl::check_clock(until_sim_s);
  impl_->process_until(until_sim_s);
  auto& ready = impl_->unreported;
  const auto end = std::upper_bound(
      ready.begin(), ready.end(), until_sim_s,
      [](double time, const Completion& completion) { return time < completion.last_token_sim_s; });
  out.insert(out.end(), ready.begin(), end);
  impl_->outstanding -= end - ready.begin();
  ready.erase(ready.begin(), end);
}

std::int64_t InstancePool::outstanding() const {
  return impl_->outstanding;
}

double InstancePool::busy_sim_s(std::int32_t instance) const {
  return impl_->engine(instance).busy_sim_s(impl_->now_sim_s);
}

std::int64_t InstancePool::preemptions() const {
  std::int64_t total = 0;
  for (const Engine& engine : impl_->engines) total += engine.preemptions();
  return total;
}

std::vector<Progress> InstancePool::progress(std::int32_t instance) const {
  return impl_->engine(instance).progress(impl_->now_sim_s);
}

std::vector<Progress> InstancePool::preempted(std::int32_t instance) const {
  return impl_->engine(instance).preempted();
}

InstanceStatus InstancePool::status(std::int32_t instance) const {
  return impl_->engine(instance).status(impl_->now_sim_s);
}

std::int64_t InstancePool::cached_tokens(std::int32_t instance,
                                         const std::vector<Segment>& prefix) const {
  const Engine& engine = impl_->engine(instance);
  if (const auto flaw = flaw_of_prefix(prefix, limits::REQUEST_TOKENS_MAX); !flaw.empty()) {
    throw std::invalid_argument("the text" + flaw + "at most " +
                                std::to_string(limits::REQUEST_TOKENS_MAX));
  }
  return engine.cached_tokens(prefix, impl_->now_sim_s);
}

void InstancePool::check_fits(const Profile& profile, const Request& request) {
  const CostModel checked(profile);
  if (const std::string flaw = flaw_of_size(profile, request, 1); !flaw.empty()) {
    throw std::invalid_argument("the request" + flaw);
  }
}

double InstancePool::iteration_sim_s(const Profile& profile, std::int64_t sequences,
                                     std::int64_t kv_tokens, std::int64_t prefill_tokens) {
  if (sequences < 0 || kv_tokens < 0 || prefill_tokens < 0 ||
      sequences > limits::REQUEST_TOKENS_MAX || kv_tokens > limits::KV_TOKENS_MAX ||
      prefill_tokens > limits::REQUEST_TOKENS_MAX) {
    throw std::invalid_argument(
        "an iteration of " + std::to_string(sequences) + " sequences, " +
        std::to_string(kv_tokens) + " KV and " + std::to_string(prefill_tokens) +
        " prefill tokens; none may be negative, or beyond " +
        std::to_string(limits::REQUEST_TOKENS_MAX) + ", " + std::to_string(limits::KV_TOKENS_MAX) +
        " and " + std::to_string(limits::REQUEST_TOKENS_MAX));
  }
  const CostModel cost(profile);
  if (prefill_tokens == 0) return detail::to_seconds(cost.decode_run(sequences, kv_tokens).first);
  detail::PrefillWork prefill;
  prefill.add(prefill_tokens, 0);
  return detail::to_seconds(cost.mixed(sequences, kv_tokens, prefill));
}

double InstancePool::isolated_sim_s(const Profile& profile, const Request& request,
                                    bool chunked_prefill) {
  if (const std::string flaw = flaw_of_tokens(request); !flaw.empty()) {
    throw std::invalid_argument("the request" + flaw);
  }
  const CostModel cost(profile);
  detail::Units total = 0;
  const std::int32_t share = detail::share_units(request.reused_share);
  for (std::int64_t kv = share == 0 ? request.reused_tokens : 0; kv < request.prompt_tokens;) {
    const std::int64_t left = request.prompt_tokens - kv;
    const std::int64_t chunk =
        chunked_prefill ? std::min<std::int64_t>(profile.chunk_tokens, left) : left;
    detail::PrefillWork prefill;
    prefill.add(chunk, kv);
    if (kv < request.reused_tokens) {
      prefill.reuse(std::min(request.reused_tokens - kv, chunk), kv, share);
    }
    total += cost.mixed(0, 0, prefill);
    kv += chunk;
  }
  const std::int64_t iterations = request.output_tokens - 1;
  return detail::to_seconds(total +
                            cost.decode_run(1, request.prompt_tokens + 1).elapsed(iterations));
}

}  // namespace metropolis
