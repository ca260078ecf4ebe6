// The duration of an iteration, in integer time.
//
// Virtual time is counted in units of 2^-60 s. Sums of integers do not depend on grouping, so a
// leap over many iterations ends at exactly the same instant as the single iterations would: two
// instances with the same work agree to the last bit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "metropolis/instance.hpp"

namespace metropolis::detail {

__extension__ typedef __int128 Units;  // NOLINT: 64 bits would end after eight seconds

inline constexpr double UNITS_PER_SECOND = 1152921504606846976.0;  // 2^60

inline double to_seconds(Units units) {
  return static_cast<double>(units) / UNITS_PER_SECOND;
}

// Request::reused_share is counted in units of 2^-20. Products with the largest cost, of 63 bits,
// and the largest number of tokens of an iteration, of 31 bits, fit Units.
inline constexpr int SHARE_BITS = 20;
inline constexpr std::int32_t WHOLE_SHARE = 1 << SHARE_BITS;

inline std::int32_t share_units(double share) {
  return static_cast<std::int32_t>(share * WHOLE_SHARE + 0.5);
}

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// Decode-only iterations of a constant batch: iteration i takes first + i * growth, iteration 0
// takes `once` more, and every `period`th, from iteration 0 on, a decision more.
struct DecodeRun {
  Units first;
  Units growth;
  Units once = 0;
  Units decision = 0;
  std::int64_t period = 1;

  Units elapsed(std::int64_t iterations) const {
    const Units run = once + iterations * first +
                      growth * (static_cast<Units>(iterations) * (iterations - 1) / 2);
    return decision == 0 ? run : run + decision * ceil_div(iterations, period);
  }
};

// The prefill part of one iteration.
struct PrefillWork {
  std::int64_t tokens = 0;
  std::int64_t attention = 0;  // sum over chunks of chunk * (2 * kv + chunk), i.e. 2 Q
  std::int64_t chunks = 0;
  std::int64_t spared = 0;  // of the tokens, by reuse, in units of a share

  void add(std::int64_t chunk, std::int64_t kv) {
    tokens += chunk;
    attention += chunk * (2 * kv + chunk);
    ++chunks;
  }

  // The first `reused` tokens of a chunk that was added cost only `share` of the others.
  void reuse(std::int64_t reused, std::int64_t kv, std::int32_t share) {
    const std::int64_t off = WHOLE_SHARE - share;
    spared += reused * off;
    attention -= static_cast<std::int64_t>(static_cast<Units>(reused * (2 * kv + reused)) * off >>
                                           SHARE_BITS);
  }
};

// Profile's formula with every coefficient in integer units.
class CostModel {
 public:
  // Throws std::invalid_argument that names the invalid field of the profile.
  explicit CostModel(const Profile& profile);

  // `sequences` decode, reading `kv_tokens` in the first iteration and `sequences` more in each
  // later one; without decisions.
  DecodeRun decode_run(std::int64_t sequences, std::int64_t kv_tokens) const {
    return {linear(sequences) + b_ * sequences + static_cast<Units>(k_) * kv_tokens,
            static_cast<Units>(k_) * sequences};
  }

  Units mixed(std::int64_t sequences, std::int64_t kv_tokens, const PrefillWork& prefill) const {
    return linear(sequences + prefill.tokens, prefill.spared) + b_ * sequences +
           static_cast<Units>(k_mixed_) * kv_tokens +
           static_cast<Units>(q_) * prefill.attention / 2 +
           static_cast<Units>(c_) * (c_once_ ? 1 : prefill.chunks) +
           decision(sequences + prefill.chunks);
  }

  // Time of a decision on an iteration of `sequences`.
  Units decision(std::int64_t sequences) const { return d_ + static_cast<Units>(e_) * sequences; }

  // Time to copy KV blocks between GPU and host, not overlapped with computation.
  Units swap(std::int64_t blocks) const { return static_cast<Units>(swap_block_) * blocks; }

 private:
  Units linear(std::int64_t tokens, std::int64_t spared = 0) const {
    Units computed = static_cast<Units>(g_) * tokens;
    if (spared > 0) computed -= static_cast<Units>(g_) * spared >> SHARE_BITS;
    return std::max<Units>(w_, computed + h_);
  }

  Units w_, b_, h_, d_;
  std::int64_t g_, k_, k_mixed_, q_, c_, e_, swap_block_;
  bool c_once_;
};

// Bytes of one KV block.
inline double block_bytes(const Profile& profile) {
  return static_cast<double>(profile.kv_bytes_per_token) * profile.block_tokens;
}

}  // namespace metropolis::detail
