#include <doctest/doctest.h>

#include <limits>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "metropolis/controllers.hpp"

using namespace metropolis;

namespace {

using Cluster = std::vector<AgentId>;

// Running agents do not wait, and the edges of a waiting agent lead to a running one.
void check_edges(const Controller& controller, const std::vector<Cluster>& running) {
  const std::vector<AgentId> edges = controller.blocked_by();
  std::vector<bool> runs(edges.size());
  for (const Cluster& cluster : running) {
    for (const AgentId agent : cluster) runs[static_cast<std::size_t>(agent)] = true;
  }
  for (std::size_t agent = 0; agent < edges.size(); ++agent) {
    if (edges[agent] == NO_AGENT) continue;
    CHECK(!runs[agent]);
    std::size_t at = agent;
    for (std::size_t i = 0; i < edges.size() && edges[at] != NO_AGENT; ++i) {
      at = static_cast<std::size_t>(edges[at]);
    }
    CHECK(runs[at]);
  }
}

// Runs walkers to completion in random order, validating after every commit; returns the commits.
int run(Controller& controller, std::vector<Position> at, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Cluster> running;
  const auto start = [&](const Dispatches& out) {
    for (const auto& cluster : out.clusters) {
      const auto members = out.members(cluster);
      running.emplace_back(members.begin(), members.end());
    }
    controller.validate();
    check_edges(controller, running);
  };
  Dispatches out;
  controller.start(out);
  start(out);
  int commits = 0;
  for (; !running.empty(); ++commits) {
    std::swap(running[random() % running.size()], running.back());
    const Cluster agents = running.back();
    running.pop_back();
    std::vector<Position> moved;
    for (const AgentId agent : agents) {
      Position& p = at[static_cast<std::size_t>(agent)];
      (random() % 2 ? p.x : p.y) += static_cast<double>(random() % 3) - 1;
      moved.push_back(p);
    }
    out.clear();
    controller.commit(agents, moved, out);
    start(out);
  }
  return commits;
}

std::vector<Position> scattered(std::size_t agents, unsigned side, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Position> positions(agents);
  for (Position& p : positions) p = {double(random() % side), double(random() % side)};
  return positions;
}

}  // namespace

TEST_CASE("every population finishes, whatever the rule") {
  for (const Rule rule : {Rule{5, 5}, Rule{2, 4}, Rule{0, 0}, Rule{40, 40}}) {
    for (const std::size_t agents : {1u, 2u, 30u}) {
      for (unsigned seed = 0; seed < 4; ++seed) {
        const auto positions = scattered(agents, 40, seed);
        const auto controller = make_controller(rule, Chebyshev{}, 1, positions, {}, 15);
        run(*controller, positions, seed);
        CHECK(controller->floor() == 15);
      }
    }
  }
}

TEST_CASE("an infinite radius is a barrier, a negative one imposes no order") {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto positions = scattered(7, 9, 1);
  const auto lockstep = make_controller({infinity, infinity}, Euclidean{}, 1, positions, {}, 6);
  CHECK(run(*lockstep, positions, 1) == 6);
  const auto unordered = make_controller({-infinity, -infinity}, Euclidean{}, 1, positions, {}, 6);
  CHECK(run(*unordered, positions, 1) == 6 * 7);
}

TEST_CASE("commands come in order of step and smallest agent") {
  const std::vector<Position> positions{{50, 0}, {0, 0}, {51, 0}, {99, 0}};
  const auto controller = make_controller({5, 5}, Chebyshev{}, 1, positions, {}, 3);
  Dispatches out;
  controller->start(out);
  REQUIRE(out.clusters.size() == 3);
  CHECK(out.agents[out.clusters[0].begin] == 0);
  CHECK(out.clusters[0].end - out.clusters[0].begin == 2);
  CHECK(out.agents[out.clusters[1].begin] == 1);
  CHECK(out.agents[out.clusters[2].begin] == 3);
}

TEST_CASE("a refused commit changes nothing") {
  const std::vector<Position> positions{{0, 0}, {1, 0}, {99, 0}};
  const auto controller = make_controller({5, 5}, Chebyshev{}, 1, positions, {}, 3);
  Dispatches out;
  controller->start(out);
  out.clear();
  const AgentId alone[] = {0}, reversed[] = {1, 0}, far[] = {2};
  const Position here[] = {{0, 0}}, both[] = {{1, 0}, {0, 0}}, jump[] = {{97, 0}},
                 near[] = {{98, 0}};
  CHECK_THROWS_AS(controller->commit(alone, here, out), std::invalid_argument);
  CHECK_THROWS_AS(controller->commit(reversed, both, out), std::invalid_argument);
  CHECK_THROWS_AS(controller->commit(far, jump, out), std::invalid_argument);
  CHECK(out.clusters.empty());
  controller->commit(far, near, out);
  CHECK(out.clusters.size() == 1);
  controller->validate();
}

TEST_CASE("dependencies hold before and after the step at which they are listed") {
  // Two agents that meet at step 1 of 3.
  const std::int64_t offsets[] = {0, 0, 0, 1, 2, 2, 2};
  const AgentId partners[] = {1, 0};
  const auto controller = make_graph_controller(2, 3, offsets, partners);
  const AgentId first[] = {0}, second[] = {1};
  const Position here[] = {{0, 0}};
  Dispatches out;
  controller->start(out);
  CHECK(out.clusters.size() == 2);
  out.clear();
  controller->commit(first, here, out);
  CHECK(out.clusters.empty());
  controller->commit(second, here, out);
  CHECK(out.clusters.size() == 2);
  out.clear();
  controller->commit(second, here, out);
  CHECK(out.clusters.empty());
  controller->validate();
  CHECK(controller->blocked_by() == std::vector<AgentId>{NO_AGENT, 0});
  controller->commit(first, here, out);
  CHECK(out.clusters.size() == 2);
}

TEST_CASE("lookahead resumes once all agents have passed the steps of a jump") {
  const std::vector<Position> positions{{0, 0}, {1000, 0}};
  const auto controller = make_controller({5, 5}, Chebyshev{}, 1, positions, {}, 20, false);
  const auto walk = [&](AgentId agent, Position to) {
    Dispatches out;
    controller->commit({&agent, 1}, {&to, 1}, out);
    controller->validate();
  };
  Dispatches out;
  controller->start(out);
  CHECK(controller->clear_until(0) > 1);
  walk(0, {0, 1});
  walk(0, {500, 0});  // a jump that ends before step 2
  CHECK(controller->clear_until(0) == 0);
  walk(1, {1000, 0});
  walk(1, {1000, 0});
  walk(1, {1000, 0});
  CHECK(controller->clear_until(1) == 0);  // agent 0 is at step 2
  walk(0, {500, 0});
  CHECK(controller->floor() == 3);
  CHECK(controller->clear_until(0) > 4);
  CHECK(controller->clear_until(1) > 4);
}
