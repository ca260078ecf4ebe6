// Metrics; metropolis/rules/metrics.py is their specification.
//
// within(p, q, radius, reach): a walker at q that travels at most `reach` can come within `radius`
// of p. perceives(p, q, radius): an agent at p perceives q. distance(p, q): a lower bound with
// within(p, q, r, t) => distance(p, q) <= r + t, changed by at most v when p or q moves by v.
// PLANAR: distance is never below the Chebyshev distance. UNIFORM: moving p by v never brings q
// closer by more than v. stands(p): p is a valid position; flaw(p): the reason why not.
//
// Constructors check their arguments. Members do not: they require valid positions and radius and
// reach that are not NaN. Input from outside goes through the functions at the end, which check.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
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

// More than the spacing of doubles at the largest coordinates of the plane.
inline constexpr double ROUNDING = 1e-6;

// A metric of the plane: M, which derives from it, defines the distance.
template <class M>
struct PlaneMetric {
  static constexpr bool PLANAR = true;
  static constexpr bool UNIFORM = true;
  static constexpr double COORDINATE_MAX = 1e9;
  static bool stands(Position p) {
    return std::abs(p.x) <= COORDINATE_MAX && std::abs(p.y) <= COORDINATE_MAX;
  }
  static std::string flaw(Position) { return "its coordinates must lie within ±1e+09"; }
  static bool within(Position p, Position q, double radius, double reach) {
    return M::distance(p, q) <= radius + reach;
  }
  static bool perceives(Position p, Position q, double radius) { return within(p, q, radius, 0); }
};

struct Chebyshev : PlaneMetric<Chebyshev> {
  static double distance(Position p, Position q) {
    return std::max(std::abs(p.x - q.x), std::abs(p.y - q.y));
  }
};

struct Euclidean : PlaneMetric<Euclidean> {
  static double distance(Position p, Position q) {
    const double dx = p.x - q.x, dy = p.y - q.y;
    return std::sqrt(dx * dx + dy * dy);
  }
};

struct Manhattan : PlaneMetric<Manhattan> {
  static double distance(Position p, Position q) {
    return std::abs(p.x - q.x) + std::abs(p.y - q.y);
  }
};

// Distance fields by their origin, computed on demand; all are dropped at once when their memory is
// full. A copy starts empty, so every controller has its own.
template <class Field>
class FieldCache {
 public:
  static constexpr std::size_t BYTES_MAX = std::size_t{32} << 20;
  FieldCache() = default;
  FieldCache(const FieldCache&) {}
  FieldCache& operator=(const FieldCache&) = delete;

  // The field of `key`, empty if new or dropped.
  Field& operator[](std::uint64_t key) { return fields_[key]; }
  // Call it before a field grows by `bytes`; returns whether all fields were dropped.
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

// A map of tiles and walls; a step leads to a 4-neighbour. Walking distances are measured from a
// set of tiles, up to `horizon` steps, and cached. Not thread-safe.
class Tiles {
 public:
  static constexpr std::int64_t SIDE_MAX = 1'000'000;  // fits into the key of a field
  static constexpr std::int64_t TILES_MAX = 1 << 30;   // indices of windows are int
  static constexpr int HORIZON_MAX = 250;              // steps fit a byte

  // walls: height rows of width tiles, a wall is non-zero; horizon in steps, 1 to HORIZON_MAX.
  // Throws std::invalid_argument on an empty map or an argument out of range.
  Tiles(std::span<const std::uint8_t> walls, int width, int height, int horizon);

  bool stands(Position p) const;
  std::string flaw(Position p) const;

 protected:
  struct Tile {
    int x, y;
  };
  struct DistanceField {  // steps to the tiles of a window; FAR: more than `depth`
    int x0 = 0, y0 = 0, width = 0, height = 0, depth = 0;
    std::vector<std::uint8_t> steps;

    bool covers(Tile t) const {
      return t.x >= x0 && t.x < x0 + width && t.y >= y0 && t.y < y0 + height;
    }
    std::size_t index(Tile t) const {
      return static_cast<std::size_t>((t.y - y0) * width + t.x - x0);
    }
    std::uint8_t steps_to(Tile t) const { return covers(t) ? steps[index(t)] : FAR; }
    DistanceField cut(Tile low, Tile high) const;  // to the window with these corners
  };
  static constexpr std::uint8_t FAR = 255;

  static Tile tile(Position p) { return {static_cast<int>(p.x), static_cast<int>(p.y)}; }
  std::size_t index(Tile t) const {
    return static_cast<std::size_t>(t.y) * static_cast<std::size_t>(width_) +
           static_cast<std::size_t>(t.x);
  }
  bool wall(Tile t) const { return (*walls_)[index(t)] != 0; }
  // The tiles (x, y) to (x + 63, y), from the lowest bit on; 1: no wall.
  std::uint64_t open_from(Tile t) const {
    const std::size_t word = static_cast<std::size_t>(t.y) * row_words_ + index_of_word(t.x);
    const int shift = t.x % 64;
    const std::uint64_t low = (*open_)[word] >> shift;
    return shift == 0 ? low : low | (*open_)[word + 1] << (64 - shift);
  }
  // The walkable tiles of the square of `radius` around `centre`.
  std::vector<Tile> square(Tile centre, int radius) const;
  // Steps from the nearest of `starts`, which lie within `radius` of `centre`, up to `depth`.
  DistanceField measure(Tile centre, int radius, const std::vector<Tile>& starts, int depth) const;
  // The same, cached; calls starts() if it has not been measured that deep yet.
  template <class Starts>
  const DistanceField& cached(Tile centre, int radius, int depth, const Starts& starts) const;

  int horizon() const { return horizon_; }
  int extent() const { return std::max(width_, height_); }

 private:
  bool has_tile(Position p) const;  // whether p is a tile of the map, perhaps a wall
  static std::size_t index_of_word(int x) { return static_cast<std::size_t>(x) / 64; }

  std::shared_ptr<const std::vector<std::uint8_t>> walls_;
  std::shared_ptr<const std::vector<std::uint64_t>> open_;  // a bit per tile, rows of row_words_
  int width_, height_, horizon_;
  std::size_t row_words_;  // one more than the tiles of a row need
  mutable FieldCache<DistanceField> fields_;
};

// Perception and movement by walking distance.
class Geodesic : public Tiles {
 public:
  static constexpr bool PLANAR = true;
  static constexpr bool UNIFORM = true;
  using Tiles::Tiles;

  static double distance(Position p, Position q) { return Manhattan::distance(p, q); }
  bool within(Position p, Position q, double radius, double reach) const;
  bool perceives(Position p, Position q, double radius) const { return within(p, q, radius, 0); }
};

// Perception is a Chebyshev square cut to the arena; movement is walking.
class GenAgent : public Tiles {
 public:
  static constexpr bool PLANAR = true;
  static constexpr bool UNIFORM = false;       // the next step may lead through a door
  static constexpr double VELOCITY_MAX = 100;  // walks of twice as many steps fit a byte
  // arenas: one number per tile; equal numbers are one arena. Throws like Tiles.
  GenAgent(std::span<const std::uint8_t> walls, std::span<const std::int32_t> arenas, int width,
           int height, double max_velocity, int horizon);

  static double distance(Position p, Position q) { return Chebyshev::distance(p, q); }
  bool within(Position p, Position q, double radius, double reach) const;
  bool perceives(Position p, Position q, double radius) const {
    return Chebyshev::within(p, q, radius, 0) && arena(tile(p)) == arena(tile(q));
  }

 private:
  std::int32_t arena(Tile t) const { return (*arenas_)[index(t)]; }
  // The tiles within `radius` of p from which an agent can affect one at p, or the reverse.
  std::vector<Tile> zone(Tile p, int radius) const;

  std::shared_ptr<const std::vector<std::int32_t>> arenas_;
  int velocity_;
};

// Distance in a graph; positions are (node, 0). Not thread-safe.
class Hops {
 public:
  static constexpr bool PLANAR = false;
  static constexpr bool UNIFORM = true;
  // Node i's neighbours are neighbours[offsets[i], offsets[i + 1]); every edge is listed at both
  // ends. Throws std::invalid_argument otherwise.
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
    std::span<const std::int32_t> neighbours_of(std::size_t node) const {
      const auto first = static_cast<std::size_t>(offsets[node]);
      return {neighbours.data() + first, static_cast<std::size_t>(offsets[node + 1]) - first};
    }
  };
  const std::shared_ptr<const Graph>& graph() const { return graph_; }

 private:
  struct Field {  // a breadth-first search from a node, as far as needed so far
    std::unordered_map<std::int32_t, std::int32_t> hops;
    std::vector<std::int32_t> queue;
    std::size_t next = 0;
  };
  // Infinite if unreachable, or if the search finds that it exceeds `hops_max`.
  double distance(Position p, Position q, double hops_max) const;

  std::shared_ptr<const Graph> graph_;
  mutable FieldCache<Field> fields_;
  mutable std::size_t grown_ = 0;  // bytes by which fields grew since the last reserve()
};

using Metric = std::variant<Chebyshev, Euclidean, Manhattan, Geodesic, GenAgent, Hops>;

// Checked variants. They throw std::invalid_argument when p or q is not a valid position, and when
// radius, reach or their sum is NaN.
bool within(const Metric& metric, Position p, Position q, double radius, double reach);
// out[i]: whether an agent at p[i] perceives q[i]; p and q have equal lengths.
void perceives(const Metric& metric, std::span<const Position> p, std::span<const Position> q,
               double radius, std::span<bool> out);
// The reason why p is not a valid position; nullopt if it is valid.
std::optional<std::string> flaw(const Metric& metric, Position p);

}  // namespace metropolis
