#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "metropolis/controllers.hpp"
#include "metropolis/optimistic_replay.hpp"
#include "metropolis/replay.hpp"

using namespace metropolis;

namespace {

struct Call {
  Step step;
  AgentId agent;
  std::int32_t prompt, output;
  std::vector<std::int64_t> parents;
};

// The columns of a trace of agents that stand still, 100 apart.
struct Columns {
  Step steps;
  AgentId agents;
  std::vector<float> positions;
  std::vector<std::int64_t> call_offsets, parent_offsets{0}, parents, prefix_id;
  std::vector<Step> call_step;
  std::vector<AgentId> call_agent;
  std::vector<std::int32_t> prompt_tokens, output_tokens, prefix_tokens;

  Columns(Step step_count, AgentId agent_count, const std::vector<Call>& calls)
      : steps(step_count), agents(agent_count) {
    std::size_t next = 0;
    for (Step step = 0; step < steps; ++step) {
      for (AgentId agent = 0; agent < agents; ++agent) {
        positions.insert(positions.end(), {static_cast<float>(100 * agent), 0});
        call_offsets.push_back(static_cast<std::int64_t>(next));
        while (next < calls.size() && calls[next].step == step && calls[next].agent == agent) {
          add(calls[next++]);
        }
      }
    }
    call_offsets.push_back(static_cast<std::int64_t>(next));
  }

  void add(const Call& call) {
    call_step.push_back(call.step);
    call_agent.push_back(call.agent);
    parents.insert(parents.end(), call.parents.begin(), call.parents.end());
    parent_offsets.push_back(static_cast<std::int64_t>(parents.size()));
    prompt_tokens.push_back(call.prompt);
    output_tokens.push_back(call.output);
    prefix_id.push_back(-1);
    prefix_tokens.push_back(0);
  }

  TraceView view() const {
    return {steps,          agents,  positions,     call_offsets,  call_step, call_agent,
            parent_offsets, parents, prompt_tokens, output_tokens, prefix_id, prefix_tokens};
  }

  std::unique_ptr<Controller> controller(double radius) const {
    std::vector<Position> starts;
    for (AgentId agent = 0; agent < agents; ++agent) starts.push_back({100.0 * agent, 0});
    return make_controller({radius, radius}, Chebyshev{}, 1, starts, {}, steps);
  }
};

// A call takes one second per output token, whatever else runs.
Profile one_per_second() {
  Profile profile;
  profile.w_ms = 1000;
  profile.kv_capacity_tokens = 1000;
  return profile;
}

constexpr double BARRIER = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("a call is sent when its parents have completed, a step without calls takes no time") {
  const Columns trace(3, 2,
                      {{0, 0, 4, 2, {}}, {0, 0, 4, 3, {0}}, {0, 1, 4, 4, {}}, {2, 0, 4, 1, {}}});
  InstancePool pool(one_per_second(), {});
  const auto controller = trace.controller(5);
  Replay replay(trace.view(), *controller, pool, {});
  CHECK(replay.run(100));
  CHECK(replay.timeline().sent_sim_s == std::vector<double>{0, 2, 0, 5});
  CHECK(replay.timeline().completed_sim_s == std::vector<double>{2, 5, 4, 6});
  CHECK(replay.timeline().instance == std::vector<std::int32_t>{0, 0, 0, 0});
  CHECK(replay.dispatched_sim_s() == std::vector<double>{0, 0, 5, 4, 5, 4});
  CHECK(replay.committed_sim_s() == std::vector<double>{5, 4, 5, 4, 6, 4});
  CHECK(replay.blocked_by() == std::vector<AgentId>(6, NO_AGENT));
  CHECK(replay.cluster() == std::vector<AgentId>{0, 1, 0, 1, 0, 1});
  CHECK(replay.wasted().empty());
  CHECK(replay.makespan_sim_s() == 6);
  CHECK(replay.committed_agent_steps() == 6);
}

TEST_CASE("agents far apart do not wait for each other, in lockstep they do") {
  const Columns trace(2, 2,
                      {{0, 0, 4, 1, {}}, {0, 1, 4, 5, {}}, {1, 0, 4, 5, {}}, {1, 1, 4, 1, {}}});
  for (const auto& [radius, makespan] : {std::pair{5.0, 6.0}, {BARRIER, 10.0}}) {
    InstancePool pool(one_per_second(), {});
    const auto controller = trace.controller(radius);
    Replay replay(trace.view(), *controller, pool, {});
    CHECK(replay.run(4));
    CHECK(replay.makespan_sim_s() == makespan);
  }
}

TEST_CASE("an engine that runs one request takes the lowest step first, or the earliest") {
  // Agent 0 is at step 1 when agent 1 sends its second call of step 0.
  const Columns trace(
      2, 3,
      {{0, 0, 4, 1, {}}, {0, 1, 4, 2, {}}, {0, 1, 4, 1, {1}}, {0, 2, 4, 6, {}}, {1, 0, 4, 3, {}}});
  const auto sent = [&](const ReplayOptions& options, std::int32_t sequences) {
    Profile profile = one_per_second();
    profile.max_sequences = sequences;
    InstancePool pool(profile, {});
    const auto controller = trace.controller(5);
    Replay replay(trace.view(), *controller, pool, options);
    CHECK(replay.run(6));
    return replay.timeline().completed_sim_s;
  };
  CHECK(sent({true, 0}, 1) == std::vector<double>{1, 3, 10, 9, 13});
  CHECK(sent({false, 0}, 1) == std::vector<double>{1, 3, 13, 9, 12});
  // With one call in flight, the next one is chosen by (step, agent, number) when it is sent.
  CHECK(sent({false, 1}, 128) == std::vector<double>{1, 3, 4, 10, 13});
}

TEST_CASE("a replay in portions equals the whole") {
  std::vector<Call> calls;
  for (Step step = 0; step < 4; ++step) {
    for (AgentId agent = 0; agent < 3; ++agent) calls.push_back({step, agent, 4, 1 + agent, {}});
  }
  const Columns trace(4, 3, calls);
  const auto completed = [&](std::int64_t portion) {
    InstancePool pool(one_per_second(), {});
    const auto controller = trace.controller(5);
    Replay replay(trace.view(), *controller, pool, {});
    int runs = 1;
    while (!replay.run(portion)) ++runs;
    CHECK(runs == (12 + portion - 1) / portion);
    return replay.timeline().completed_sim_s;
  };
  const auto whole = completed(12);
  CHECK(completed(1) == whole);
  CHECK(completed(5) == whole);
}

TEST_CASE("a replay refuses what does not fit together") {
  const Columns trace(2, 2, {{0, 0, 4, 1, {}}}), longer(3, 2, {});
  const auto controller = trace.controller(5), other = longer.controller(5);
  InstancePool pool(one_per_second(), {}), busy(one_per_second(), {});
  busy.submit(7, {4, 1}, 0);
  const auto construct = [&](const TraceView& view, Controller& used, InstancePool& instances,
                             const ReplayOptions& options) {
    Replay(view, used, instances, options);
  };
  CHECK_THROWS_AS(construct(trace.view(), *other, pool, {}), std::invalid_argument);
  CHECK_THROWS_AS(construct(trace.view(), *controller, busy, {}), std::invalid_argument);
  CHECK_THROWS_AS(construct(trace.view(), *controller, pool, {true, -1}), std::invalid_argument);
  TraceView shorter = trace.view();
  shorter.output_tokens = {};
  CHECK_THROWS_AS(construct(shorter, *controller, pool, {}), std::invalid_argument);
  Replay replay(trace.view(), *controller, pool, {});
  CHECK_THROWS_AS(replay.run(0), std::invalid_argument);
  CHECK(replay.run(4));
}

TEST_CASE("a replay that has failed does not continue") {
  const Columns trace(1, 1, {{0, 0, 4, 2000, {}}});  // more tokens than fit
  const auto controller = trace.controller(5);
  InstancePool pool(one_per_second(), {});
  Replay replay(trace.view(), *controller, pool, {});
  CHECK_THROWS_AS(replay.run(1), std::invalid_argument);
  CHECK_THROWS_WITH(replay.run(1), "the replay has already failed");
}

TEST_CASE("agents that run ahead repeat what they saw wrongly") {
  const Columns trace(3, 2,
                      {{0, 0, 10, 5, {}},
                       {0, 1, 10, 50, {}},
                       {1, 0, 10, 5, {}},
                       {2, 0, 10, 5, {}},
                       {2, 1, 10, 5, {}}});
  const auto run = [&](double perception_radius, double risk_max) {
    const auto controller =
        make_controller({2, perception_radius}, Chebyshev{}, 1,
                        std::vector<Position>{{0, 0}, {100, 0}}, {}, trace.steps);
    InstancePool pool(one_per_second(), {.instances = 2});
    const auto replay = make_optimistic_replay(trace.view(), *controller, pool, Chebyshev{},
                                               {perception_radius, 1, 2, risk_max, INFINITY, true});
    CHECK_THROWS_AS(replay->run(0), std::invalid_argument);
    CHECK(replay->run(100));
    CHECK(replay->committed_agent_steps() == 6);
    for (const double sim_s : replay->timeline().completed_sim_s) CHECK(std::isfinite(sim_s));
    for (const double sim_s : replay->committed_sim_s()) CHECK(std::isfinite(sim_s));
    return std::pair(replay->sent_calls(), replay->makespan_sim_s());
  };
  const auto [alone_calls, alone_sim_s] = run(4, 0);
  CHECK(alone_calls == 5);
  const auto [careful_calls, careful_sim_s] = run(150, -1);
  CHECK(careful_calls == 5);
  CHECK(careful_sim_s > alone_sim_s);
  const auto [daring_calls, daring_sim_s] = run(150, 1);
  CHECK(daring_calls > 5);
  CHECK(daring_sim_s <= careful_sim_s);
}
