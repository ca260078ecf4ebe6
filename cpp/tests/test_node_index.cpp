// The graph index compared with the graph's distances.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "metropolis/node_index.hpp"

namespace {

using metropolis::Hops;
using metropolis::NodeIndex;
using metropolis::Position;
using metropolis::Step;

struct Agent {
  Step step;
  std::uint32_t next;
};

Hops ring_with_ties(std::size_t nodes, std::mt19937& draw) {
  std::vector<std::set<std::int32_t>> known(nodes);
  for (std::size_t i = 1; i < nodes; ++i) {
    const std::size_t other = draw() % 5 == 0 ? draw() % nodes : i - 1;
    if (other == i || draw() % 8 == 0) continue;
    known[i].insert(static_cast<std::int32_t>(other));
    known[other].insert(static_cast<std::int32_t>(i));
  }
  std::vector<std::int64_t> offsets{0};
  std::vector<std::int32_t> neighbours;
  for (const auto& of : known) {
    neighbours.insert(neighbours.end(), of.begin(), of.end());
    offsets.push_back(static_cast<std::int64_t>(neighbours.size()));
  }
  return Hops(offsets, neighbours);
}

TEST_CASE("a search visits each matching agent within its radius once") {
  std::mt19937 draw(7);
  for (int world = 0; world < 60; ++world) {
    const std::size_t nodes = 1 + draw() % 30;
    const Hops metric = ring_with_ties(nodes, draw);
    NodeIndex<Agent> index(metric.graph());
    std::vector<Agent> agents(40);
    std::vector<Position> places;
    for (std::uint32_t id = 0; id < agents.size(); ++id) {
      agents[id].step = static_cast<Step>(draw() % 4);
      places.push_back({static_cast<double>(draw() % nodes), 0});
      index.insert(agents, id, index.cell(places[id]));
    }
    for (int move = 0; move < 20; ++move) {
      const auto id = static_cast<std::uint32_t>(draw() % agents.size());
      index.remove(agents, id, index.cell(places[id]));
      places[id].x = static_cast<double>(draw() % nodes);
      index.insert(agents, id, index.cell(places[id]));
      const Position from = places[draw() % places.size()];
      const double radius = static_cast<double>(draw() % 5);
      std::multiset<std::uint32_t> visited, expected;
      index.search(
          agents, from, radius, [&](Step step, double hops) { return step >= 2 && hops <= radius; },
          [&](std::uint32_t other) { visited.insert(other); });
      for (std::uint32_t other = 0; other < agents.size(); ++other) {
        const bool near = metric.within(from, places[other], radius, 0);
        CHECK(near == (metric.distance(from, places[other]) <= radius));
        if (near && agents[other].step >= 2) expected.insert(other);
      }
      CHECK(visited == expected);
    }
  }
}

}  // namespace
