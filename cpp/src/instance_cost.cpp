#include "instance_cost.hpp"

#include <cmath>
#include <stdexcept>
#include <string>

namespace metropolis::detail {
namespace {

constexpr double COEFFICIENT_MS_MAX = 8000;  // fits 63 bits of units

std::int64_t to_units(double value_ms, const char* field) {
  if (!(value_ms >= 0 && value_ms < COEFFICIENT_MS_MAX)) {
    throw std::invalid_argument("profile field " + std::string(field) + " is " +
                                std::to_string(value_ms) +
                                ", but must be at least 0 and below 8000 ms");
  }
  return static_cast<std::int64_t>(value_ms * UNITS_PER_SECOND / 1000);
}

void require_positive(std::int64_t value, const char* field) {
  if (value <= 0) {
    throw std::invalid_argument("profile field " + std::string(field) + " is " +
                                std::to_string(value) + ", but must be at least 1");
  }
}

}  // namespace

CostModel::CostModel(const Profile& p)
    : w_(to_units(p.w_ms, "w_ms")),
      b_(to_units(p.b_ms, "b_ms")),
      h_(to_units(p.h_ms, "h_ms")),
      d_(to_units(p.d_ms, "d_ms")),
      g_(to_units(p.g_ms, "g_ms")),
      k_(to_units(p.k_ms, "k_ms")),
      k_mixed_(to_units(p.k_mixed_ms > 0 ? p.k_mixed_ms : p.k_ms, "k_mixed_ms")),
      q_(to_units(p.q_ms, "q_ms")),
      c_(to_units(p.c_ms, "c_ms")),
      e_(to_units(p.e_ms, "e_ms")),
      swap_block_(p.pcie_gb_per_s > 0 && p.kv_bytes_per_token >= 0
                      ? to_units(block_bytes(p) / (p.pcie_gb_per_s * 1e6), "pcie_gb_per_s")
                      : 0),
      c_once_(p.c_once) {
  to_units(p.k_mixed_ms, "k_mixed_ms");
  require_positive(p.block_tokens, "block_tokens");
  require_positive(p.chunk_tokens, "chunk_tokens");
  require_positive(p.max_sequences, "max_sequences");
  if (!(p.kv_bytes_per_token >= 0 && p.pcie_gb_per_s >= 0 && std::isfinite(p.pcie_gb_per_s) &&
        p.host_gb >= 0 && p.host_gb <= 1e9)) {
    throw std::invalid_argument(
        "profile fields kv_bytes_per_token, pcie_gb_per_s and host_gb must be at least 0, and "
        "host_gb at most 1e9");
  }
  if (p.kv_capacity_tokens > limits::KV_TOKENS_MAX) {
    throw std::invalid_argument("profile field kv_capacity_tokens is " +
                                std::to_string(p.kv_capacity_tokens) + ", but must be at most " +
                                std::to_string(limits::KV_TOKENS_MAX));
  }
  if (p.kv_capacity_tokens < p.block_tokens) {
    throw std::invalid_argument(
        "profile field kv_capacity_tokens is " + std::to_string(p.kv_capacity_tokens) +
        ", but must hold at least one block of " + std::to_string(p.block_tokens) + " tokens");
  }
  if (!(std::max(p.w_ms, p.g_ms + p.h_ms) >= 1e-6)) {
    throw std::invalid_argument(
        "profile fields w_ms, g_ms and h_ms make an iteration take no time; w_ms must be positive");
  }
}

}  // namespace metropolis::detail
