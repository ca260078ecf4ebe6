// Metrics, the twins of metropolis/rules/metrics.py, which defines them.
//
// within(p, q, radius, reach): a walker at q, travelling at most `reach`, can come within `radius`
// of p. distance(p, q): a lower bound with within(p, q, r, t) => distance(p, q) <= r + t, changed
// by at most v when p or q moves by v. PLANAR: distance is never below the Chebyshev distance.
// stands(p): somebody can stand at p; flaw(p) says why not.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "metropolis/types.hpp"

namespace metropolis {

struct PlaneMetric {
  static constexpr bool PLANAR = true;
  static constexpr double COORDINATE_MAX = 1e9;
  static bool stands(Position p) {
    return std::abs(p.x) <= COORDINATE_MAX && std::abs(p.y) <= COORDINATE_MAX;
  }
  static std::string flaw(Position) { return "its coordinates must lie within ±1e+09"; }
};

struct Chebyshev : PlaneMetric {
  static double distance(Position p, Position q) {
    return std::max(std::abs(p.x - q.x), std::abs(p.y - q.y));
  }
  static bool within(Position p, Position q, double radius, double reach) {
    return distance(p, q) <= radius + reach;
  }
};

struct Euclidean : PlaneMetric {
  static double distance(Position p, Position q) {
    const double dx = p.x - q.x, dy = p.y - q.y;
    return std::sqrt(dx * dx + dy * dy);
  }
  static bool within(Position p, Position q, double radius, double reach) {
    return distance(p, q) <= radius + reach;
  }
};

struct Manhattan : PlaneMetric {
  static double distance(Position p, Position q) {
    return std::abs(p.x - q.x) + std::abs(p.y - q.y);
  }
  static bool within(Position p, Position q, double radius, double reach) {
    return distance(p, q) <= radius + reach;
  }
};

// Fields computed on demand and forgotten all at once when they fill their memory. A copy of the
// owner starts empty: every controller has its own.
template <class Field>
class FieldStore {
 public:
  static constexpr std::size_t BYTES_MAX = std::size_t{64} << 20;
  FieldStore() = default;
  FieldStore(const FieldStore&) {}
  FieldStore& operator=(const FieldStore&) = delete;

  // The field of `key`, empty when it is new or forgotten.
  Field& operator[](std::uint64_t key) { return fields_[key]; }
  // To be called before a field grows by `bytes`; true when every field has been forgotten.
  bool reserve(std::size_t bytes) {
    const bool full = bytes_ + bytes > BYTES_MAX;
    if (full) {
      fields_.clear();
      bytes_ = 0;
    }
    bytes_ += bytes;
    return full;
  }

 private:
  std::unordered_map<std::uint64_t, Field> fields_;
  std::size_t bytes_ = 0;
};

// Perceives a Chebyshev square, walks from tile to tile round walls. Not thread-safe.
class Geodesic {
 public:
  static constexpr bool PLANAR = true;
  // walls: height rows of width tiles, non-zero is a wall; horizon in steps, 1 to 250.
  Geodesic(std::span<const std::uint8_t> walls, int width, int height, int horizon);

  static double distance(Position p, Position q) { return Chebyshev::distance(p, q); }
  bool within(Position p, Position q, double radius, double reach) const;
  bool stands(Position p) const;
  std::string flaw(Position p) const;

 private:
  struct Walks {  // steps to the square from the tiles of a window, 255: further than `depth`
    int x0 = 0, y0 = 0, width = 0, height = 0, depth = 0;
    std::vector<std::uint8_t> steps;
  };
  bool wall(int x, int y) const {
    return (*walls_)[static_cast<std::size_t>(y) * static_cast<std::size_t>(width_) +
                     static_cast<std::size_t>(x)] != 0;
  }
  const Walks& walks(int x, int y, int radius, int depth) const;
  void measure(Walks& walks, int x, int y, int radius) const;

  std::shared_ptr<const std::vector<std::uint8_t>> walls_;
  int width_, height_, horizon_;
  mutable FieldStore<Walks> fields_;
};

// Distance in a graph; positions are (node, 0). Not thread-safe.
class Hops {
 public:
  static constexpr bool PLANAR = false;
  // Node i's neighbours are neighbours[offsets[i], offsets[i + 1]); every edge at both ends.
  Hops(std::vector<std::int64_t> offsets, std::vector<std::int32_t> neighbours);

  double distance(Position p, Position q) const;
  bool within(Position p, Position q, double radius, double reach) const {
    return distance(p, q) <= radius + reach;
  }
  bool stands(Position p) const;
  std::string flaw(Position p) const;

 private:
  struct Graph {
    std::vector<std::int64_t> offsets;
    std::vector<std::int32_t> neighbours;
    std::size_t nodes() const { return offsets.size() - 1; }
  };
  std::shared_ptr<const Graph> graph_;
  mutable FieldStore<std::vector<std::int32_t>> fields_;
};

using Metric = std::variant<Chebyshev, Euclidean, Manhattan, Geodesic, Hops>;

}  // namespace metropolis
