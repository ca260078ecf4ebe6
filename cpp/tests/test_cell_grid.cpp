#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "metropolis/cell_grid.hpp"

using namespace metropolis;

namespace {

struct Dweller {
  Step step = 0;
  std::uint32_t next = CellGrid<Dweller>::NONE;
};

// The largest number of agents that a search around one of them visits.
std::size_t visited(const std::vector<Position>& positions) {
  CellGrid<Dweller> grid(positions, 5);
  std::vector<Dweller> agents(positions.size());
  for (std::uint32_t id = 0; id < agents.size(); ++id) {
    grid.insert(agents, id, grid.cell(positions[id]));
  }
  std::size_t most = 0;
  for (const Position& centre : positions) {
    std::size_t count = 0;
    const auto matters = [](Step, double distance) { return distance <= 5; };
    grid.search(agents, centre, 5, matters, [&](std::uint32_t) { ++count; });
    most = std::max(most, count);
  }
  return most;
}

}  // namespace

TEST_CASE("those far away do not crowd the others into a few cells") {
  std::mt19937 random(1);
  std::vector<Position> town(2000);
  for (Position& p : town) p = {double(random() % 300), double(random() % 300)};
  CHECK(visited(town) < 50);
  for (const Position far : {Position{1e6, 1e6}, {-1e9, 0}, {150, 1e5}, {310, 310}}) {
    auto with_one = town, twice = town;
    with_one.push_back(far);
    CHECK(visited(with_one) < 150);
    for (const Position& p : town) twice.push_back({p.x + far.x, p.y + far.y});
    CHECK(visited(twice) < 150);
  }
}
