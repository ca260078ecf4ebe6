#include "metropolis/metric.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <utility>

#include "metropolis/checks.hpp"

namespace metropolis {

namespace {

constexpr int DEPTH_MIN = 16;  // enough for most queries, and a small field is cheap

void check_tiles(std::size_t walls, int width, int height, int horizon) {
  const std::int64_t tiles = std::int64_t{width} * height;
  if (width < 1 || height < 1 || width > Tiles::SIDE_MAX || height > Tiles::SIDE_MAX ||
      tiles > Tiles::TILES_MAX || static_cast<std::size_t>(tiles) != walls) {
    throw std::invalid_argument(
        std::to_string(walls) + " walls for a map of " + std::to_string(width) + " x " +
        std::to_string(height) +
        " tiles; there must be one for each tile, and a side must be 1 to " +
        std::to_string(Tiles::SIDE_MAX) + " tiles");
  }
  if (horizon < 1 || horizon > Tiles::HORIZON_MAX) {
    throw std::invalid_argument("the horizon is " + std::to_string(horizon) + "; it must be 1 to " +
                                std::to_string(Tiles::HORIZON_MAX) + " steps");
  }
}

int checked_velocity(double max_velocity) {
  if (!(max_velocity >= 0 && max_velocity <= GenAgent::VELOCITY_MAX)) {
    throw std::invalid_argument("the velocity is " + format_number(max_velocity) +
                                "; genagent walks 0 to " + format_number(GenAgent::VELOCITY_MAX) +
                                " tiles a step");
  }
  return static_cast<int>(std::floor(max_velocity));
}

// Every edge as (node, neighbour), once per end.
std::vector<std::pair<std::int32_t, std::int32_t>> ends(const Hops::Graph& graph) {
  std::vector<std::pair<std::int32_t, std::int32_t>> ends;
  ends.reserve(graph.neighbours.size());
  for (std::size_t node = 0; node < graph.nodes(); ++node) {
    for (const std::int32_t other : graph.neighbours_of(node)) {
      ends.emplace_back(static_cast<std::int32_t>(node), other);
    }
  }
  return ends;
}

void check_graph(const Hops::Graph& graph) {
  const auto& [offsets, neighbours] = graph;
  constexpr std::size_t NODES_MAX = std::numeric_limits<std::int32_t>::max();
  if (offsets.empty() || offsets.size() > NODES_MAX || offsets.front() != 0 ||
      offsets.back() != static_cast<std::int64_t>(neighbours.size()) ||
      !std::ranges::is_sorted(offsets)) {
    throw std::invalid_argument(
        "the offsets of a graph must ascend from 0 to the number of neighbours, " +
        std::to_string(neighbours.size()) + ", one for each node and one more");
  }
  for (const std::int32_t other : neighbours) {
    if (other >= 0 && static_cast<std::size_t>(other) < graph.nodes()) continue;
    throw std::invalid_argument("a neighbour is node " + std::to_string(other) +
                                "; the graph has " + std::to_string(graph.nodes()) + " nodes");
  }
  auto listed = ends(graph), reversed = listed;
  for (auto& [node, other] : reversed) std::swap(node, other);
  std::ranges::sort(listed);
  std::ranges::sort(reversed);
  const auto [one, other] = std::ranges::mismatch(listed, reversed);
  if (one == listed.end()) return;
  const auto& [node, neighbour] = std::min(*one, *other);
  throw std::invalid_argument("the edge between the nodes " + std::to_string(node) + " and " +
                              std::to_string(neighbour) +
                              " is not listed equally often at both ends");
}

template <class M>
void check_positions(const M& metric, Position p, Position q) {
  for (const Position position : {p, q}) {
    if (metric.stands(position)) continue;
    throw std::invalid_argument("no agent can stand at " + format_position(position) + ": " +
                                metric.flaw(position));
  }
}

void check_radius(double radius, double reach) {
  if (!std::isnan(radius + reach)) return;
  throw std::invalid_argument("the radius is " + format_number(radius) + " and the reach " +
                              format_number(reach) + "; they and their sum must be numbers");
}

}  // namespace

Tiles::Tiles(std::span<const std::uint8_t> walls, int width, int height, int horizon)
    : width_(width), height_(height), horizon_(horizon) {
  check_tiles(walls.size(), width, height, horizon);
  walls_ = std::make_shared<std::vector<std::uint8_t>>(walls.begin(), walls.end());
  row_words_ = index_of_word(width - 1) + 2;
  std::vector<std::uint64_t> open(row_words_ * static_cast<std::size_t>(height));
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const std::uint64_t bit = std::uint64_t{!wall({x, y})} << x % 64;
      open[static_cast<std::size_t>(y) * row_words_ + index_of_word(x)] |= bit;
    }
  }
  open_ = std::make_shared<std::vector<std::uint64_t>>(std::move(open));
}

bool Tiles::has_tile(Position p) const {
  return p.x >= 0 && p.x < width_ && p.y >= 0 && p.y < height_ && p.x == std::floor(p.x) &&
         p.y == std::floor(p.y);
}

bool Tiles::stands(Position p) const {
  return has_tile(p) && !wall(tile(p));
}

std::string Tiles::flaw(Position p) const {
  if (has_tile(p)) return "it is a wall";
  return "it must be a tile of the map, which is " + std::to_string(width_) + " x " +
         std::to_string(height_);
}

std::vector<Tiles::Tile> Tiles::square(Tile centre, int radius) const {
  std::vector<Tile> tiles;
  for (int y = std::max(0, centre.y - radius); y < std::min(height_, centre.y + radius + 1); ++y) {
    for (int x = std::max(0, centre.x - radius); x < std::min(width_, centre.x + radius + 1); ++x) {
      if (!wall({x, y})) tiles.push_back({x, y});
    }
  }
  return tiles;
}

Tiles::DistanceField Tiles::measure(Tile centre, int radius, const std::vector<Tile>& starts,
                                    int depth) const {
  DistanceField field;
  const int margin = radius + depth;
  field.depth = depth;
  field.x0 = std::max(0, centre.x - margin);
  field.y0 = std::max(0, centre.y - margin);
  field.width = std::min(width_, centre.x + margin + 1) - field.x0;
  field.height = std::min(height_, centre.y + margin + 1) - field.y0;
  field.steps.assign(static_cast<std::size_t>(field.width * field.height), FAR);
  // A bit per tile, so that a word takes a step with 64 tiles at once. An empty word behind each
  // row, and an empty row before the first and behind the last, spare tests of the window's edges.
  const std::size_t words = index_of_word(field.width - 1) + 1, stride = words + 1;
  const auto rows = static_cast<std::size_t>(field.height);
  std::vector<std::uint64_t> unreached((rows + 2) * stride), frontier((rows + 2) * stride);
  const std::uint64_t last_word = ~std::uint64_t{0} >> (63 - (field.width - 1) % 64);
  for (std::size_t row = 0; row < rows; ++row) {
    std::uint64_t* const tiles = &unreached[(row + 1) * stride];
    const int y = field.y0 + static_cast<int>(row);
    for (std::size_t i = 0; i < words; ++i) {
      tiles[i] = open_from({field.x0 + static_cast<int>(64 * i), y});
    }
    tiles[words - 1] &= last_word;
  }
  std::vector<std::uint64_t> next = frontier;
  Tile low = centre, high = centre;  // corners of the tiles that are reached
  const auto reach = [&](std::size_t row, std::size_t word, std::uint64_t tiles, int steps) {
    unreached[(row + 1) * stride + word] &= ~tiles;
    const int x = field.x0 + static_cast<int>(64 * word), y = field.y0 + static_cast<int>(row);
    low = {std::min(low.x, x + std::countr_zero(tiles)), std::min(low.y, y)};
    high = {std::max(high.x, x + 63 - std::countl_zero(tiles)), std::max(high.y, y)};
    std::uint8_t* const found = &field.steps[field.index({x, y})];
    for (; tiles != 0; tiles &= tiles - 1) {
      found[std::countr_zero(tiles)] = static_cast<std::uint8_t>(steps);
    }
  };
  std::size_t top = rows, bottom = 0;  // the rows [top, bottom) hold everything reached so far
  for (const Tile start : starts) {
    const auto row = static_cast<std::size_t>(start.y - field.y0);
    const std::size_t word = index_of_word(start.x - field.x0), i = (row + 1) * stride + word;
    const std::uint64_t tile = std::uint64_t{1} << (start.x - field.x0) % 64 & unreached[i];
    if (tile == 0) continue;
    frontier[i] |= tile;
    reach(row, word, tile, 0);
    top = std::min(top, row);
    bottom = std::max(bottom, row + 1);
  }
  bool grows = top < bottom;
  for (int steps = 1; steps <= depth && grows; ++steps) {
    grows = false;
    if (top > 0) --top;
    if (bottom < rows) ++bottom;
    for (std::size_t row = top; row < bottom; ++row) {
      std::size_t i = (row + 1) * stride;
      for (std::size_t word = 0; word < words; ++word, ++i) {
        const std::uint64_t beside = frontier[i] << 1 | frontier[i] >> 1 | frontier[i - 1] >> 63 |
                                     frontier[i + 1] << 63 | frontier[i - stride] |
                                     frontier[i + stride];
        next[i] = beside & unreached[i];
        if (next[i] == 0) continue;
        reach(row, word, next[i], steps);
        grows = true;
      }
    }
    frontier.swap(next);
  }
  return field.cut(low, high);
}

Tiles::DistanceField Tiles::DistanceField::cut(Tile low, Tile high) const {
  DistanceField part{low.x, low.y, high.x - low.x + 1, high.y - low.y + 1, depth, {}};
  part.steps.reserve(static_cast<std::size_t>(part.width * part.height));
  for (int y = low.y; y <= high.y; ++y) {
    const auto row = steps.begin() + static_cast<std::ptrdiff_t>(index({low.x, y}));
    part.steps.insert(part.steps.end(), row, row + part.width);
  }
  return part;
}

template <class Starts>
const Tiles::DistanceField& Tiles::cached(Tile centre, int radius, int depth,
                                          const Starts& starts) const {
  const std::uint64_t key =
      static_cast<std::uint64_t>(index(centre)) << 20 | static_cast<std::uint64_t>(radius);
  DistanceField* field = &fields_[key];
  if (!field->steps.empty() && field->depth >= depth) return *field;
  int deep_enough = DEPTH_MIN;
  while (deep_enough < depth) deep_enough *= 2;
  DistanceField deeper = measure(centre, radius, starts(), std::min(deep_enough, horizon_));
  if (fields_.reserve(deeper.steps.size() + sizeof(DistanceField))) field = &fields_[key];
  *field = std::move(deeper);
  return *field;
}

bool Geodesic::within(Position p, Position q, double radius, double reach) const {
  const double bound = radius + reach;
  if (Manhattan::distance(p, q) > bound) return false;
  if (bound >= horizon() + 1) return true;
  const Tile centre = tile(p);
  const auto start = [&] { return std::vector<Tile>{centre}; };
  const std::uint8_t steps = cached(centre, 0, static_cast<int>(bound), start).steps_to(tile(q));
  return steps != FAR && steps <= bound;
}

GenAgent::GenAgent(std::span<const std::uint8_t> walls, std::span<const std::int32_t> arenas,
                   int width, int height, double max_velocity, int horizon)
    : Tiles(walls, width, height, horizon),
      arenas_(std::make_shared<std::vector<std::int32_t>>(arenas.begin(), arenas.end())),
      velocity_(checked_velocity(max_velocity)) {
  if (arenas.size() == walls.size()) return;
  throw std::invalid_argument(std::to_string(arenas.size()) + " arenas for a map of " +
                              std::to_string(walls.size()) + " tiles; there must be one for each");
}

bool GenAgent::within(Position p, Position q, double radius, double reach) const {
  if (radius < 0) return false;
  const double beyond =
      std::max(0.0, std::abs(p.x - q.x) - radius) + std::max(0.0, std::abs(p.y - q.y) - radius);
  if (beyond > reach) return false;
  if (std::isinf(radius) || reach >= horizon() + 1) return true;
  const Tile centre = tile(p);
  const int tiles = static_cast<int>(std::floor(std::min<double>(radius, extent())));
  const auto starts = [&] { return zone(centre, tiles); };
  const std::uint8_t steps =
      cached(centre, tiles, static_cast<int>(reach), starts).steps_to(tile(q));
  return steps != FAR && steps <= reach;
}

std::vector<Tiles::Tile> GenAgent::zone(Tile p, int radius) const {
  const DistanceField nearby = measure(p, 0, {p}, 2 * velocity_);
  std::vector<std::int32_t> arenas;
  for (const Tile t : square(p, velocity_)) {
    if (nearby.steps_to(t) <= velocity_) arenas.push_back(arena(t));
  }
  std::vector<Tile> own;  // tiles of the arena of p
  for (const Tile t : square(p, radius + velocity_)) {
    if (arena(t) == arena(p)) own.push_back(t);
  }
  const DistanceField beside_own = measure(p, radius + velocity_, own, velocity_);
  std::vector<Tile> zone;
  for (const Tile t : square(p, radius)) {
    const bool arena_near = std::find(arenas.begin(), arenas.end(), arena(t)) != arenas.end();
    if (arena_near || nearby.steps_to(t) != FAR || beside_own.steps_to(t) != FAR) zone.push_back(t);
  }
  return zone;
}

Hops::Hops(std::vector<std::int64_t> offsets, std::vector<std::int32_t> neighbours)
    : graph_(std::make_shared<Graph>(Graph{std::move(offsets), std::move(neighbours)})) {
  check_graph(*graph_);
}

double Hops::distance(Position p, Position q, double hops_max) const {
  constexpr std::size_t BYTES_PER_FIELD = 256, BYTES_PER_NODE = 64;
  const auto start = static_cast<std::int32_t>(p.x), goal = static_cast<std::int32_t>(q.x);
  fields_.reserve(std::exchange(grown_, 0));
  Field& field = fields_[static_cast<std::uint64_t>(start)];
  if (field.queue.empty()) {
    field.queue.push_back(start);
    field.hops.emplace(start, 0);
    grown_ += BYTES_PER_FIELD;
  }
  while (!field.hops.contains(goal) && field.next < field.queue.size()) {
    const std::int32_t node = field.queue[field.next];
    const std::int32_t hops = field.hops.at(node) + 1;
    if (hops > hops_max) break;
    ++field.next;
    for (const std::int32_t neighbour : graph_->neighbours_of(static_cast<std::size_t>(node))) {
      if (!field.hops.emplace(neighbour, hops).second) continue;
      field.queue.push_back(neighbour);
      grown_ += BYTES_PER_NODE;
    }
  }
  const auto found = field.hops.find(goal);
  return found == field.hops.end() ? std::numeric_limits<double>::infinity() : found->second;
}

bool Hops::stands(Position p) const {
  return p.x >= 0 && p.x < static_cast<double>(graph_->nodes()) && p.x == std::floor(p.x) &&
         p.y == 0;
}

std::string Hops::flaw(Position) const {
  return "it must be (node, 0) with a node below " + std::to_string(graph_->nodes());
}

bool within(const Metric& metric, Position p, Position q, double radius, double reach) {
  check_radius(radius, reach);
  return std::visit(
      [&](const auto& chosen) {
        check_positions(chosen, p, q);
        return chosen.within(p, q, radius, reach);
      },
      metric);
}

void perceives(const Metric& metric, std::span<const Position> p, std::span<const Position> q,
               double radius, std::span<bool> out) {
  check_radius(radius, 0);
  if (p.size() != q.size() || p.size() != out.size()) {
    throw std::invalid_argument("p has " + std::to_string(p.size()) + " positions and q " +
                                std::to_string(q.size()) + "; they must be equally many");
  }
  std::visit(
      [&](const auto& chosen) {
        for (std::size_t i = 0; i < p.size(); ++i) {
          check_positions(chosen, p[i], q[i]);
          out[i] = chosen.perceives(p[i], q[i], radius);
        }
      },
      metric);
}

std::optional<std::string> flaw(const Metric& metric, Position p) {
  return std::visit(
      [&](const auto& chosen) -> std::optional<std::string> {
        if (chosen.stands(p)) return std::nullopt;
        return chosen.flaw(p);
      },
      metric);
}

}  // namespace metropolis
