#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "metropolis/controllers.hpp"
#include "metropolis/speculation.hpp"

using namespace metropolis;

namespace {

using Kind = SpeculationCommand::Kind;
constexpr Step STEPS = 6;
constexpr double RADIUS = 2;

// Agent 0 stands at (0, 0). Agent 1 comes into its sight in the last step.
struct Meeting {
  std::unique_ptr<Controller> controller =
      make_controller({2, 2}, Chebyshev{}, 1, std::vector<Position>{{0, 0}, {5, 0}}, {}, STEPS);
  std::unique_ptr<Speculation> speculation = make_speculation(
      *controller, Chebyshev{}, {RADIUS, RADIUS, STEPS}, std::vector<EntityId>{0, 1},
      std::vector<Sighting>{{0, {0, 0}, 0}, {1, {5, 0}, 0}}, std::vector<Digest>{0, 0});
  std::vector<SpeculationCommand> waiting;  // executions that have not ended
  std::int64_t commits = 0, speculative_commits = 0, drops = 0;
  std::set<ExecutionId> sure;

  static Position place(AgentId agent, Step step) {
    const std::vector<double> x{5, 4, 3, 3, 3, 2, 2};
    return agent == 0 ? Position{0, 0} : Position{x[static_cast<std::size_t>(step)], 0};
  }

  void obey(const std::vector<SpeculationCommand>& commands) {
    for (const SpeculationCommand& command : commands) {
      const auto is_same = [&](const auto& one) { return one.id == command.id; };
      if (command.kind == Kind::ABORT) std::erase_if(waiting, is_same);
      if (command.kind == Kind::DROP) ++drops;
      if (command.kind == Kind::COMMIT) {
        commits += static_cast<std::int64_t>(command.agents.size());
        speculative_commits += !sure.contains(command.id);
      }
      if (command.sure) sure.insert(command.id);
      if (command.kind == Kind::PROCEED || command.kind == Kind::RESOLVE) {
        waiting.push_back(command);
      }
    }
    speculation->validate();
  }

  // Ends the executions in which `agent` takes part; whether there was one.
  bool finish(AgentId agent) {
    for (const SpeculationCommand& command : waiting) {
      if (std::ranges::find(command.agents, agent) == command.agents.end()) continue;
      const SpeculationCommand ended = command;
      std::erase_if(waiting, [&](const auto& one) { return one.id == ended.id; });
      if (ended.kind == Kind::PROCEED) {
        const Question question{Question::Kind::ENTITIES, -1, place(agent, ended.step), RADIUS};
        auto seen = speculation->answer(question, ended.step, ended.sure);
        speculation->observed(ended.id, {{question, std::move(seen)}});
        speculation->proceeded(ended.id);
      } else {
        std::vector<Write> writes;
        std::vector<Mind> minds;
        for (const AgentId member : ended.agents) {
          writes.push_back({member, Sighting{member, place(member, ended.step + 1), 0}});
          minds.push_back({member, ended.step});
        }
        speculation->resolved(ended.id, {}, writes, {}, minds, {});
      }
      obey(speculation->settle());
      return true;
    }
    return false;
  }

  // Lets `agent` run as far as it can, ahead of the other.
  void run(AgentId agent) {
    do {
      while (finish(agent)) {
      }
      const auto candidates = speculation->candidates();
      if (std::ranges::find(candidates, agent) == candidates.end()) return;
      obey(speculation->speculate(std::vector<AgentId>{agent}));
    } while (true);
  }
};

}  // namespace

TEST_CASE("an agent runs ahead, and repeats the steps in which it missed another") {
  Meeting meeting;
  meeting.obey(meeting.speculation->start());
  meeting.run(0);
  CHECK(meeting.speculation->next_step(0) == STEPS);
  CHECK(meeting.speculation->floor() == 0);
  CHECK(meeting.drops == 0);
  while (meeting.speculation->floor() < STEPS) {
    meeting.run(1);
    meeting.run(0);
  }
  CHECK(meeting.commits == 2 * STEPS);
  CHECK(meeting.speculative_commits > 0);
  CHECK(meeting.drops > 0);
  CHECK(meeting.speculation->candidates().empty());
}

TEST_CASE("a question with a negative radius has no answer") {
  const Meeting meeting;
  for (const double radius : {-1.0, -std::numeric_limits<double>::infinity()}) {
    for (const auto kind : {Question::Kind::ENTITIES, Question::Kind::EVENTS}) {
      CHECK(meeting.speculation->answer({kind, -1, {0, 0}, radius}, 0, false).empty());
    }
  }
}

TEST_CASE("a speculation refuses what does not fit, and goes on") {
  Meeting meeting;
  Speculation& speculation = *meeting.speculation;
  CHECK_THROWS_AS(speculation.settle(), std::invalid_argument);
  meeting.obey(speculation.start());
  CHECK_THROWS_AS(speculation.start(), std::invalid_argument);
  const ExecutionId id = meeting.waiting.front().id;
  const Question around{Question::Kind::ENTITIES, -1, {0, 0}, RADIUS};
  const double nan = std::nan("");
  const std::vector<Reads> refused{
      {{around, {{1, {5, 0}, 0}}}},                              // not what is there
      {{around, {{1, {5, 0}, 0}, {0, {0, 0}, 0}}}},              // not in order
      {{around, {{0, {nan, 0}, 0}}}},                            // nowhere
      {{around, {{ENTITY_MAX + 1, {0, 0}, 0}}}},                 // out of range
      {{{Question::Kind::ENTITIES, -1, {0, 0}, nan}, {}}},       // no radius
      {{{Question::Kind::EVENTS, -1, {1e300, 0}, RADIUS}, {}}},  // nowhere
      {{{Question::Kind::ENTITY, 0, {}, 0}, {{1, {5, 0}, 0}}}},  // another entity
      {{{Question::Kind::ENTITY, -1, {}, 0}, {}}},               // no entity
  };
  for (const Reads& reads : refused) {
    CHECK_THROWS_AS(speculation.observed(id, reads), std::invalid_argument);
  }
  CHECK_THROWS_AS(speculation.observed(99, {}), std::invalid_argument);
  CHECK_THROWS_AS(speculation.proceeded(id), std::invalid_argument);
  CHECK_THROWS_AS(speculation.failed(id), std::invalid_argument);
  CHECK_THROWS_AS(speculation.resolved(id, {}, {}, {}, {}, {}), std::invalid_argument);
  CHECK_THROWS_AS(speculation.speculate(std::vector<AgentId>{7}), std::invalid_argument);
  CHECK(speculation.settle().empty());
  while (speculation.floor() < STEPS) {
    meeting.run(0);
    meeting.run(1);
  }
  CHECK(meeting.commits == 2 * STEPS);
}
