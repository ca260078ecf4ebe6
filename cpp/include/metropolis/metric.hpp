// Metrics, the twins of metropolis/rules/metrics.py, which defines them.
//
// within(p, q, radius, reach): a walker at q, travelling at most `reach`, can come within `radius`
// of p. perceives(p, q, radius): someone at p perceives what is at q. distance(p, q): a lower bound
// with within(p, q, r, t) => distance(p, q) <= r + t, changed by at most v when p or q moves by v.
// PLANAR: distance is never below the Chebyshev distance. stands(p): somebody can stand at p;
// flaw(p) says why not.
//
// Constructors check what they are given. The members of a metric do not: p and q stand, radius and
// reach are numbers. What comes from outside goes through the functions at the end, which check.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "metropolis/types.hpp"

namespace metropolis {

struct PlaneMetric {
  static constexpr bool PLANAR = true;
  static constexpr bool UNIFORM = true;
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
  static bool perceives(Position p, Position q, double radius) { return within(p, q, radius, 0); }
};

struct Euclidean : PlaneMetric {
  static double distance(Position p, Position q) {
    const double dx = p.x - q.x, dy = p.y - q.y;
    return std::sqrt(dx * dx + dy * dy);
  }
  static bool within(Position p, Position q, double radius, double reach) {
    return distance(p, q) <= radius + reach;
  }
  static bool perceives(Position p, Position q, double radius) { return within(p, q, radius, 0); }
};

struct Manhattan : PlaneMetric {
  static double distance(Position p, Position q) {
    return std::abs(p.x - q.x) + std::abs(p.y - q.y);
  }
  static bool within(Position p, Position q, double radius, double reach) {
    return distance(p, q) <= radius + reach;
  }
  static bool perceives(Position p, Position q, double radius) { return within(p, q, radius, 0); }
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

// A map of tiles on which one walks to a 4-neighbour in a step, round walls. Walks are measured
// from a set of tiles, up to `horizon` steps, and kept. Not thread-safe.
class Tiles {
 public:
  static constexpr std::int64_t SIDE_MAX = 1'000'000;  // fits the key of a field
  static constexpr std::int64_t TILES_MAX = 1 << 30;   // indices of windows are int

  // walls: height rows of width tiles, non-zero is a wall; horizon in steps, 1 to 250.
  // Throws std::invalid_argument unless there is a tile and every argument is in its range.
  Tiles(std::span<const std::uint8_t> walls, int width, int height, int horizon);

  bool stands(Position p) const;
  std::string flaw(Position p) const;

 protected:
  struct Tile {
    int x, y;
  };
  struct Walks {  // steps to the tiles of a window, FAR: more than `depth`
    int x0 = 0, y0 = 0, width = 0, height = 0, depth = 0;
    std::vector<std::uint8_t> steps;

    bool covers(Tile t) const {
      return t.x >= x0 && t.x < x0 + width && t.y >= y0 && t.y < y0 + height;
    }
    std::uint8_t& at(Tile t) {
      return steps[static_cast<std::size_t>((t.y - y0) * width + t.x - x0)];
    }
    std::uint8_t to(Tile t) const {
      return covers(t) ? steps[static_cast<std::size_t>((t.y - y0) * width + t.x - x0)] : FAR;
    }
  };
  static constexpr std::uint8_t FAR = 255;

  static Tile tile(Position p) { return {static_cast<int>(p.x), static_cast<int>(p.y)}; }
  std::size_t index(Tile t) const {
    return static_cast<std::size_t>(t.y) * static_cast<std::size_t>(width_) +
           static_cast<std::size_t>(t.x);
  }
  bool wall(Tile t) const { return (*walls_)[index(t)] != 0; }
  // The walkable tiles of the square of `radius` round `centre`.
  std::vector<Tile> square(Tile centre, int radius) const;
  // Steps from the nearest of `starts`, which lie within `radius` of `centre`, up to `depth`.
  Walks measure(Tile centre, int radius, const std::vector<Tile>& starts, int depth) const;
  // The same, kept; starts() is asked for when it has not been measured as deep yet.
  template <class Starts>
  const Walks& kept(Tile centre, int radius, int depth, const Starts& starts) const;

  int horizon() const { return horizon_; }
  int extent() const { return std::max(width_, height_); }

 private:
  std::shared_ptr<const std::vector<std::uint8_t>> walls_;
  int width_, height_, horizon_;
  mutable FieldStore<Walks> fields_;
};

// One distance for perception and movement: the length of the walk.
class Geodesic : public Tiles {
 public:
  static constexpr bool PLANAR = true;
  static constexpr bool UNIFORM = true;
  using Tiles::Tiles;

  static double distance(Position p, Position q) { return Manhattan::distance(p, q); }
  bool within(Position p, Position q, double radius, double reach) const;
  bool perceives(Position p, Position q, double radius) const { return within(p, q, radius, 0); }
};

// Perceives a Chebyshev square cut to the arena, moves by walking.
class GenAgent : public Tiles {
 public:
  static constexpr bool PLANAR = true;
  static constexpr bool UNIFORM = false;       // the next step may lead through a door
  static constexpr double VELOCITY_MAX = 100;  // walks of twice as many steps are counted in bytes
  // arenas: as many as walls; equal numbers are one arena. Throws as Tiles does.
  GenAgent(std::span<const std::uint8_t> walls, std::span<const std::int32_t> arenas, int width,
           int height, double max_velocity, int horizon);

  static double distance(Position p, Position q) { return Chebyshev::distance(p, q); }
  bool within(Position p, Position q, double radius, double reach) const;
  bool perceives(Position p, Position q, double radius) const {
    return Chebyshev::within(p, q, radius, 0) && arena(tile(p)) == arena(tile(q));
  }

 private:
  std::int32_t arena(Tile t) const { return (*arenas_)[index(t)]; }
  std::vector<Tile> zone(Tile p, int radius) const;

  std::shared_ptr<const std::vector<std::int32_t>> arenas_;
  int velocity_;
};

// Distance in a graph; positions are (node, 0). Not thread-safe.
class Hops {
 public:
  static constexpr bool PLANAR = false;
  static constexpr bool UNIFORM = true;
  // Node i's neighbours are neighbours[offsets[i], offsets[i + 1]); every edge at both ends.
  // Throws std::invalid_argument otherwise.
  Hops(std::vector<std::int64_t> offsets, std::vector<std::int32_t> neighbours);

  double distance(Position p, Position q) const {
    return distance(p, q, std::numeric_limits<double>::infinity());
  }
  bool within(Position p, Position q, double radius, double reach) const {
    return distance(p, q, radius + reach) <= radius + reach;
  }
  bool perceives(Position p, Position q, double radius) const { return within(p, q, radius, 0); }
  bool stands(Position p) const;
  std::string flaw(Position p) const;

  struct Graph {
    std::vector<std::int64_t> offsets;
    std::vector<std::int32_t> neighbours;
    std::size_t nodes() const { return offsets.size() - 1; }
    std::span<const std::int32_t> of(std::size_t node) const {
      const auto first = static_cast<std::size_t>(offsets[node]);
      return {neighbours.data() + first, static_cast<std::size_t>(offsets[node + 1]) - first};
    }
  };
  const std::shared_ptr<const Graph>& graph() const { return graph_; }

 private:
  struct Field {  // a search from a node, as far as it has been needed
    std::unordered_map<std::int32_t, std::int32_t> hops;
    std::vector<std::int32_t> queue;
    std::size_t next = 0;
  };
  // Infinite if there is no way, or if more than `most` hops are found to be needed.
  double distance(Position p, Position q, double most) const;

  std::shared_ptr<const Graph> graph_;
  mutable FieldStore<Field> fields_;
  mutable std::size_t grown_ = 0;  // bytes by which fields grew since the store was told
};

using Metric = std::variant<Chebyshev, Euclidean, Manhattan, Geodesic, GenAgent, Hops>;

// The same for arguments that may be anything. They throw std::invalid_argument when nobody can
// stand at p or q, and when radius, reach or their sum is NaN.
bool within(const Metric& metric, Position p, Position q, double radius, double reach);
// Whether someone at p[i] perceives what is at q[i], for equally many.
void perceives(const Metric& metric, std::span<const Position> p, std::span<const Position> q,
               double radius, std::span<bool> out);
// Why p is no valid place for an agent; nothing when it is one.
std::optional<std::string> flaw(const Metric& metric, Position p);

}  // namespace metropolis
