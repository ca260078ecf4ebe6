#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "metropolis/metric.hpp"

using namespace metropolis;

TEST_CASE("plane metrics include their border") {
  CHECK(Chebyshev::within({0, 0}, {3, -4}, 3, 1));
  CHECK_FALSE(Chebyshev::within({0, 0}, {3, -4}, 3, 0.5));
  CHECK(Euclidean::within({0, 0}, {3, -4}, 5, 0));
  CHECK(Manhattan::within({0, 0}, {3, -4}, 5, 2));
  CHECK_FALSE(Manhattan::within({0, 0}, {3, -4}, 5, 1));
}

TEST_CASE("the geodesic metric is the walking distance around walls") {
  // . # .
  // . # .
  // . . .
  const std::uint8_t walls[] = {0, 1, 0, 0, 1, 0, 0, 0, 0};
  const Geodesic metric(walls, 3, 3, 96);
  CHECK(metric.within({0, 0}, {2, 0}, 2, 4));
  CHECK_FALSE(metric.within({0, 0}, {2, 0}, 2, 3));
  CHECK_FALSE(metric.stands({1, 0}));
  CHECK_FALSE(metric.stands({3, 0}));
  CHECK(metric.stands({1, 2}));

  const Geodesic shortsighted(walls, 3, 3, 2);
  CHECK_FALSE(shortsighted.within({0, 0}, {2, 0}, 0, 2));
  CHECK(shortsighted.within({0, 0}, {2, 0}, 0, 3));  // beyond its horizon: a lower bound
}

TEST_CASE("the metric of GenAgent perceives through walls, but only within the arena") {
  // 1 # 1 # 2
  // 1 1 1 # 2
  const std::uint8_t walls[] = {0, 1, 0, 1, 0, 0, 0, 0, 1, 0};
  const std::int32_t arenas[] = {1, 1, 1, 2, 2, 1, 1, 1, 2, 2};
  const GenAgent metric(walls, arenas, 5, 2, 1, 96);
  CHECK(metric.within({0, 0}, {2, 0}, 2, 0));
  CHECK_FALSE(metric.within({0, 0}, {2, 0}, 1, 1));
  CHECK(metric.within({0, 0}, {2, 0}, 1, 2));
  CHECK_FALSE(metric.within({2, 0}, {4, 0}, 4, 90));
  CHECK(metric.perceives({0, 0}, {2, 0}, 2));
  CHECK_FALSE(metric.perceives({2, 0}, {4, 0}, 2));
}

TEST_CASE("the distances along a street that is longer than the horizon") {
  const std::vector<std::uint8_t> walls(200, 0);
  const Geodesic metric(walls, 200, 1, 250);
  CHECK(metric.within({100, 0}, {101, 0}, 1, 0));
  CHECK_FALSE(metric.within({100, 0}, {102, 0}, 1, 0));
}

TEST_CASE("a copy of a metric gives the same results") {
  const std::uint8_t walls[] = {0, 0, 0, 0};
  const Geodesic metric(walls, 4, 1, 96);
  CHECK(metric.within({0, 0}, {3, 0}, 1, 2));
  const Geodesic copy = metric;
  CHECK(copy.within({0, 0}, {3, 0}, 1, 2));
  CHECK_FALSE(copy.within({0, 0}, {3, 0}, 1, 1));
}

TEST_CASE("hops count edges, and unconnected nodes are never near") {
  const Hops metric({0, 1, 3, 4, 4}, {1, 0, 2, 1});
  CHECK(metric.distance({0, 0}, {2, 0}) == 2);
  CHECK(metric.within({0, 0}, {2, 0}, 1, 1));
  CHECK_FALSE(metric.within({0, 0}, {3, 0}, 1e9, 1e9));
  CHECK_FALSE(metric.stands({4, 0}));
}
