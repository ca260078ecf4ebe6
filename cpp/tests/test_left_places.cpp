#include <doctest/doctest.h>

#include <limits>
#include <map>

#include "metropolis/left_places.hpp"

using namespace metropolis;

namespace {

constexpr AgentId ANN = 0, BEN = 1, CAY = 2;

using Found = std::vector<std::pair<LeftPlaces::Entity, LeftPlaces::Change>>;

LeftPlaces::Known knowing(std::map<AgentId, Step> steps) {
  return [steps](AgentId agent) { return steps.contains(agent) ? steps.at(agent) : -1; };
}

}  // namespace

TEST_CASE("of several times that one agent left places in sight, the last one counts") {
  LeftPlaces places(Chebyshev{}, 4);
  places.leave(BEN, {1, 0}, 0, {{BEN, 0}});
  places.leave(BEN, {2, 0}, 1, {{BEN, 1}});
  places.leave(BEN, {3, 0}, 2, {{BEN, 2}});
  CHECK(places.unknown_to(ANN, knowing({}), {0, 0}, 2, {}) == Found{{BEN, {{BEN, 1}}}});
  CHECK(places.unknown_to(ANN, knowing({{BEN, 1}}), {0, 0}, 2, {}).empty());
  CHECK(places.unknown_to(ANN, knowing({{BEN, 1}}), {1, 0}, 2, {}) == Found{{BEN, {{BEN, 2}}}});
  CHECK(places.unknown_to(ANN, knowing({{BEN, 2}}), {1, 0}, 2, {}).empty());
  places.leave(BEN, {1, 0}, 3, {{BEN, 3}});
  CHECK(places.unknown_to(ANN, knowing({{BEN, 2}}), {0, 0}, 2, {}) == Found{{BEN, {{BEN, 3}}}});
}

TEST_CASE("all changes that need several agents count") {
  LeftPlaces places(Chebyshev{}, 4);
  places.leave(BEN, {1, 0}, 0, {{BEN, 0}, {CAY, 0}});
  places.leave(BEN, {2, 0}, 1, {{BEN, 1}});
  CHECK(places.unknown_to(ANN, knowing({}), {0, 0}, 2, {}) ==
        Found{{BEN, {{BEN, 1}}}, {BEN, {{BEN, 0}, {CAY, 0}}}});
  CHECK(places.unknown_to(ANN, knowing({{BEN, 0}}), {0, 0}, 1, {}) ==
        Found{{BEN, {{BEN, 0}, {CAY, 0}}}});
}

TEST_CASE("only what was left after a step counts, if one is given") {
  LeftPlaces places(Chebyshev{}, 4);
  places.leave(BEN, {1, 0}, 0, {{BEN, 0}});
  places.leave(CAY, {1, 0}, 1, {{CAY, 1}});
  CHECK(places.unknown_to(ANN, knowing({}), {0, 0}, 2, 0) == Found{{CAY, {{CAY, 1}}}});
  CHECK(places.has_left({0, 0}, 1, 0));
  CHECK_FALSE(places.has_left({0, 0}, 1, 1));
  CHECK_FALSE(places.has_left({-1, 0}, 1, 0));
}

TEST_CASE("places in a graph are found within their hops, or everywhere") {
  // 0 - 1 - 2, and 3 alone
  LeftPlaces places(Hops({0, 1, 3, 4, 4}, {1, 0, 2, 1}), 2);
  places.leave(BEN, {2, 0}, 0, {{BEN, 0}});
  places.leave(CAY, {3, 0}, 0, {{CAY, 0}});
  CHECK_FALSE(places.has_left({0, 0}, 1, -1));
  CHECK(places.unknown_to(ANN, knowing({}), {0, 0}, 2, {}) == Found{{BEN, {{BEN, 0}}}});
  const double everywhere = std::numeric_limits<double>::infinity();
  CHECK(places.unknown_to(ANN, knowing({}), {0, 0}, everywhere, {}).size() == 2);
}
