#include <doctest/doctest.h>

#include <utility>

#include "../src/risk.hpp"

using namespace metropolis;

TEST_CASE("the chance of being wrong is half of the chance of a meeting until steps have ended") {
  const OutcomeChances outcomes;
  CHECK(outcomes.chance(OutcomeChances::kind(0.6, 0), 0.6) == doctest::Approx(0.3));
}

TEST_CASE("the chance of being wrong is learned from the steps of a kind") {
  OutcomeChances outcomes;
  const OutcomeChances::Kind kind = OutcomeChances::kind(0.02, 40);
  for (int i = 0; i < 1000; ++i) outcomes.add(kind, i % 4 != 0);
  CHECK(outcomes.chance(kind, 0.02) == doctest::Approx(0.25).epsilon(0.02));
  for (const auto& [in_sight, own_steps] : {std::pair(0.02, 1), std::pair(0.6, 40)}) {
    const OutcomeChances::Kind other = OutcomeChances::kind(in_sight, own_steps);
    CHECK(outcomes.chance(other, in_sight) == doctest::Approx(in_sight / 2));
  }
}

TEST_CASE("every chance and number of own steps has a kind") {
  OutcomeChances outcomes;
  for (const double in_sight : {0.0, 0.002, 0.97, 1.0}) {
    for (const Step own_steps : {0, 1, 32767, 32768, 2147483647}) {
      outcomes.add(OutcomeChances::kind(in_sight, own_steps), true);
    }
  }
}
