#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "metropolis/instance.hpp"
#include "metropolis/workload.hpp"

using namespace metropolis;

namespace {

constexpr double FOREVER = std::numeric_limits<double>::infinity();

// One millisecond per new token: time counts computed tokens.
Profile token_counter(std::int64_t kv_capacity_tokens) {
  Profile profile;
  profile.g_ms = 1;
  profile.kv_capacity_tokens = kv_capacity_tokens;
  profile.block_tokens = 4;
  return profile;
}

Request request(std::int32_t prompt, std::int32_t output) {
  Request r;
  r.prompt_tokens = prompt;
  r.output_tokens = output;
  return r;
}

std::vector<Completion> finish(InstancePool& pool) {
  std::vector<Completion> out;
  pool.advance(FOREVER, out);
  return out;
}

}  // namespace

TEST_CASE("a lone request takes its prefill and one iteration per further token") {
  Profile profile = token_counter(1000);
  profile.w_ms = 10;
  profile.chunk_tokens = 16;
  InstancePool pool(profile, {});
  pool.submit(7, request(40, 5), 100);
  const auto out = finish(pool);
  REQUIRE(out.size() == 1);
  CHECK(out[0].id == 7);
  // chunks of 16, 16 and 8 tokens, the last for the price of 10; then four tokens at 10
  CHECK(out[0].first_token_sim_s == doctest::Approx(100.042).epsilon(1e-12));
  CHECK(out[0].last_token_sim_s == doctest::Approx(100.082).epsilon(1e-12));
  CHECK(InstancePool::isolated_sim_s(profile, request(40, 5)) ==
        doctest::Approx(0.082).epsilon(1e-12));
  CHECK(pool.busy_sim_s(0) == doctest::Approx(0.082).epsilon(1e-12));
  CHECK(pool.outstanding() == 0);
  CHECK(pool.next_event_sim_s() == FOREVER);
}

TEST_CASE("a request that arrives in a leap joins at the next boundary") {
  Profile profile = token_counter(100000);
  profile.w_ms = 10;
  InstancePool pool(profile, {});
  pool.submit(0, request(10, 1001), 0);   // boundaries at 10, 20, 30 ... ms
  pool.submit(1, request(5, 1), 5.0041);  // seen at 5.010
  const auto out = finish(pool);
  REQUIRE(out.size() == 2);
  CHECK(out[0].id == 1);
  CHECK(out[0].last_token_sim_s == doctest::Approx(5.02).epsilon(1e-12));
  CHECK(out[1].last_token_sim_s == doctest::Approx(10.01).epsilon(1e-12));
}

TEST_CASE("an iteration sees the requests submitted at the boundary where it begins") {
  InstancePool pool(token_counter(1000), {});
  std::vector<Completion> out;
  pool.submit(0, request(8, 1), 0);
  while (out.empty()) pool.advance(pool.next_event_sim_s(), out);
  const double now_sim_s = out[0].last_token_sim_s;
  pool.submit(1, request(8, 1), now_sim_s);
  pool.submit(2, request(8, 1), now_sim_s);
  out = finish(pool);
  REQUIRE(out.size() == 2);
  CHECK(out[0].last_token_sim_s == out[1].last_token_sim_s);  // one iteration for both
  CHECK(out[0].last_token_sim_s == doctest::Approx(0.024).epsilon(1e-12));
}

TEST_CASE("the lowest-ranked sequence is preempted and recomputes its tokens") {
  InstancePool pool(token_counter(16), {});  // four blocks
  pool.submit(0, request(8, 9), 0);
  pool.submit(1, request(8, 2), 0);  // both fill two blocks, none is left for a first decode
  const auto out = finish(pool);
  CHECK(pool.preemptions() == 1);
  REQUIRE(out.size() == 2);
  CHECK(out[0].id == 0);
  CHECK(out[0].last_token_sim_s == doctest::Approx(0.024).epsilon(1e-12));
  CHECK(out[1].first_token_sim_s == doctest::Approx(0.016).epsilon(1e-12));
  CHECK(out[1].last_token_sim_s == doctest::Approx(0.033).epsilon(1e-12));  // 8 + 1 again
}

TEST_CASE("a cached prefix is not recomputed until it is evicted") {
  Request shared = request(12, 1);
  shared.prefix = {{3, 10}};  // two whole blocks
  InstancePool pool(token_counter(16), {.instances = 1, .prefix_reuse = true});
  pool.submit(0, shared, 0);
  pool.submit(1, shared, 1);
  pool.submit(2, request(16, 1), 2);  // needs every block
  pool.submit(3, shared, 3);
  const auto out = finish(pool);
  REQUIRE(out.size() == 4);
  CHECK(out[0].last_token_sim_s == doctest::Approx(0.012).epsilon(1e-12));
  CHECK(out[1].last_token_sim_s == doctest::Approx(1.004).epsilon(1e-12));
  CHECK(out[3].last_token_sim_s == doctest::Approx(3.012).epsilon(1e-12));
}

TEST_CASE("reused tokens cost their share after those of the own cache") {
  Request reusing = request(16, 1);
  reusing.prefix = {{3, 16}};
  reusing.reused_tokens = 12;
  reusing.reused_share = 0.25;
  InstancePool pool(token_counter(64), {.instances = 1, .prefix_reuse = true});
  pool.submit(0, reusing, 0);  // 12 / 4 + 4
  Request longer = reusing;
  longer.prompt_tokens = 40;
  longer.reused_tokens = 36;
  pool.submit(1, longer, 1);  // finds 16, then 20 / 4 + 4
  longer.prefix = {};
  longer.reused_share = 0;
  pool.submit(2, longer, 2);
  const auto out = finish(pool);
  REQUIRE(out.size() == 3);
  CHECK(out[0].last_token_sim_s == doctest::Approx(0.007).epsilon(1e-12));
  CHECK(out[1].last_token_sim_s == doctest::Approx(1.009).epsilon(1e-12));
  CHECK(out[2].last_token_sim_s == doctest::Approx(2.004).epsilon(1e-12));
  CHECK(pool.status(0).reused_tokens == 12 + 20 + 36);
  CHECK(pool.cached_tokens(0, {{3, 10}, {4, 5}}) == 8);
}

TEST_CASE("smaller priorities are admitted first, without preemption") {
  Profile profile = token_counter(1000);
  profile.max_sequences = 1;
  InstancePool pool(profile, {});
  Request urgent = request(4, 1);
  urgent.priority = -5;
  pool.submit(0, request(4, 100), 0);
  pool.submit(1, request(4, 1), 0.001);
  pool.submit(2, urgent, 0.002);
  const auto out = finish(pool);
  REQUIRE(out.size() == 3);
  CHECK(out[0].id == 0);
  CHECK(out[1].id == 2);
  CHECK(out[2].id == 1);
}

TEST_CASE("the queue follows priorities that change") {
  Profile profile = token_counter(1000);
  profile.max_sequences = 1;
  InstancePool pool(profile, {});
  for (RequestId id = 0; id < 3; ++id) pool.submit(id, request(10, 5), 0);
  pool.reprioritize({{2, -1}, {9, 0}}, 0.012);
  const auto out = finish(pool);
  REQUIRE(out.size() == 3);
  CHECK(out[1].id == 2);
  CHECK(out[1].preempted_sim_s == 0);
  CHECK_THROWS_AS(pool.reprioritize({{2, 0}}, 0.001), std::invalid_argument);
}

TEST_CASE("the least loaded instance is chosen, the lowest index on ties") {
  InstancePool pool(token_counter(1000), {.instances = 3});
  for (RequestId id = 0; id < 4; ++id) pool.submit(id, request(10, 5), 0);
  std::vector<std::int32_t> instances(4);
  for (const Completion& c : finish(pool)) instances[static_cast<std::size_t>(c.id)] = c.instance;
  CHECK(instances == std::vector<std::int32_t>{0, 1, 2, 0});
}

TEST_CASE("invalid input is refused") {
  InstancePool pool(token_counter(16), {});
  CHECK_THROWS_AS(pool.submit(0, request(0, 1), 0), std::invalid_argument);
  CHECK_THROWS_AS(pool.submit(0, request(1, 0), 0), std::invalid_argument);
  CHECK_THROWS_AS(pool.submit(0, request(16, 2), 0), std::invalid_argument);
  CHECK_THROWS_AS(InstancePool::check_fits(token_counter(16), request(16, 2)),
                  std::invalid_argument);
  CHECK_THROWS_AS(InstancePool::check_fits(Profile{}, request(16, 1)), std::invalid_argument);
  CHECK_NOTHROW(InstancePool::check_fits(token_counter(16), request(16, 1)));
  CHECK_NOTHROW(pool.submit(0, request(16, 1), 5));
  CHECK_THROWS_AS(pool.submit(1, request(1, 1), 4), std::invalid_argument);
  CHECK_THROWS_AS(InstancePool(token_counter(16), {.instances = 0}), std::invalid_argument);
  CHECK_THROWS_AS(InstancePool(Profile{}, {}), std::invalid_argument);
}

TEST_CASE("an aborted request leaves: a waiting one at once, a running one at the next boundary") {
  Profile profile = token_counter(1000);
  profile.w_ms = 10;
  profile.max_sequences = 1;
  InstancePool pool(profile, {});
  pool.submit(0, request(8, 100), 0);
  pool.submit(1, request(8, 5), 0.001);
  pool.abort(1, 0.012);
  pool.abort(0, 0.025);
  CHECK_THROWS_AS(pool.abort(0, 0.026), std::invalid_argument);
  CHECK(pool.progress(0).at(0).output_tokens == 2);
  CHECK(pool.status(0).kv_used_blocks == 3);
  const auto out = finish(pool);
  REQUIRE(out.size() == 2);
  CHECK(out[0].id == 1);
  CHECK(out[0].aborted);
  CHECK(out[0].output_tokens == 0);
  CHECK(out[0].last_token_sim_s == 0.012);
  CHECK(out[1].aborted);
  CHECK(out[1].output_tokens == 3);
  CHECK(out[1].last_token_sim_s == doctest::Approx(0.03).epsilon(1e-12));
  CHECK(pool.status(0).kv_used_blocks == 0);
  CHECK(pool.outstanding() == 0);
}

TEST_CASE("a swapped sequence resumes decoding, and copying takes time") {
  Profile profile = token_counter(16);  // four blocks, a millisecond to copy one
  profile.kv_bytes_per_token = 250000;
  profile.pcie_gb_per_s = 1;
  profile.host_gb = 1;
  CHECK_THROWS_AS(InstancePool(token_counter(16), {.preemption = Preemption::SWAP}),
                  std::invalid_argument);
  InstancePool pool(profile, {.preemption = Preemption::SWAP});
  pool.submit(0, request(8, 9), 0);
  pool.submit(1, request(8, 2), 0);
  const auto out = finish(pool);
  REQUIRE(out.size() == 2);
  CHECK(pool.status(0).swapped_blocks == 4);
  CHECK(out[0].last_token_sim_s == doctest::Approx(0.026).epsilon(1e-12));
  CHECK(out[1].last_token_sim_s == doctest::Approx(0.029).epsilon(1e-12));
}

TEST_CASE("with multi-step scheduling a sequence leaves at the next decision") {
  InstancePool pool(token_counter(1000), {.decision_iterations = 4});
  pool.submit(0, request(8, 4), 0);
  const auto out = finish(pool);
  REQUIRE(out.size() == 1);
  CHECK(out[0].output_tokens == 4);
  CHECK(out[0].last_token_sim_s == doctest::Approx(0.012).epsilon(1e-12));
}

TEST_CASE("a closed loop respects its concurrency") {
  const std::vector<double> arrival_sim_s(50, 0.0);
  const std::vector<std::int32_t> prompt(50, 8), output(50, 3);
  const Workload workload{arrival_sim_s, prompt, output, {}, {}, {}, {}};
  const auto result = run_workload(token_counter(1000), {}, workload, {.concurrency = 1});
  for (std::size_t i = 1; i < 50; ++i) {
    CHECK(result.submitted_sim_s[i] == result.last_token_sim_s[i - 1]);
  }
  CHECK(result.last_token_sim_s.back() == doctest::Approx(50 * 0.010).epsilon(1e-12));
}

TEST_CASE("a child is submitted when its parent is complete, until the simulation ends") {
  const std::vector<double> arrival_sim_s(3, 0.0);
  const std::vector<std::int32_t> prompt(3, 8), output(3, 3);
  const std::vector<std::int64_t> parent{-1, 0, 1};
  const Workload workload{arrival_sim_s, prompt, output, {}, {}, {}, parent};
  const auto whole = run_workload(token_counter(1000), {}, workload);
  CHECK(whole.submitted_sim_s[1] == whole.last_token_sim_s[0]);
  CHECK(whole.submitted_sim_s[2] == whole.last_token_sim_s[1]);
  const auto cut =
      run_workload(token_counter(1000), {}, workload,
                   {.until_sim_s = (whole.last_token_sim_s[0] + whole.last_token_sim_s[1]) / 2});
  CHECK(cut.last_token_sim_s[0] == whole.last_token_sim_s[0]);
  CHECK(std::isinf(cut.last_token_sim_s[1]));
  CHECK(cut.instance[1] == -1);
  CHECK(std::isinf(cut.submitted_sim_s[2]));
  CHECK(cut.generated_tokens[2] == 0);
}

TEST_CASE("random workloads give the same completions, whole or in slices") {
  for (unsigned seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto draw = [&random](int low, int high) {
      return std::uniform_int_distribution<std::int32_t>(low, high)(random);
    };
    Profile profile = token_counter(draw(16, 400));
    profile.w_ms = 3;
    profile.k_ms = 0.01;
    profile.q_ms = 0.001;
    profile.chunk_tokens = draw(1, 100);
    profile.max_sequences = draw(1, 20);
    profile.kv_bytes_per_token = 1000;
    profile.pcie_gb_per_s = 0.01;
    profile.host_gb = 1e-4;
    const auto preemption = std::array{Preemption::SWAP, Preemption::RECOMPUTE,
                                       Preemption::SWAP_ALL}[static_cast<std::size_t>(seed % 3)];
    const InstancePoolOptions options{draw(1, 3), seed % 2 == 0, preemption, seed % 5 == 0 ? 2 : 1};
    InstancePool whole(profile, options), sliced(profile, options);
    std::vector<Completion> of_whole, of_sliced;
    double now_sim_s = 0;
    for (RequestId id = 0; id < 60; ++id) {
      if (draw(0, 2) == 0) now_sim_s += 0.001 * draw(0, 500);
      Request r = request(draw(1, 15), draw(1, 2));
      const auto room = static_cast<std::int32_t>(profile.kv_capacity_tokens / 4 * 4) - 17;
      if (room > 0) r.output_tokens += draw(0, room);
      r.priority = draw(0, 2);
      if (draw(0, 3) > 0) r.prefix.push_back({draw(0, 1), draw(1, r.prompt_tokens)});
      if (draw(0, 1) > 0) r.prefix.push_back({draw(2, 3), r.output_tokens});
      if (r.prefix.size() == 1) r.prefix[0].tokens = std::min(r.prefix[0].tokens, r.prompt_tokens);
      whole.submit(id, r, now_sim_s);
      sliced.submit(id, r, now_sim_s);
      if (draw(0, 1) == 0) sliced.advance(now_sim_s + 0.001 * draw(-100, 0), of_sliced);
    }
    whole.advance(FOREVER, of_whole);
    while (sliced.outstanding() > 0) sliced.advance(sliced.next_event_sim_s(), of_sliced);
    REQUIRE(of_whole.size() == 60);
    REQUIRE(of_sliced.size() == 60);
    for (std::size_t i = 0; i < 60; ++i) {
      CHECK(of_whole[i].id == of_sliced[i].id);
      CHECK(of_whole[i].last_token_sim_s == of_sliced[i].last_token_sim_s);
    }
    CHECK(whole.preemptions() == sliced.preemptions());
  }
}
