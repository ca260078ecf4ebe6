#include "metropolis/metric.hpp"

#include <limits>
#include <utility>

namespace metropolis {

namespace {

constexpr int SHALLOWEST = 16;  // most questions reach no further, and a small field is cheap

}  // namespace

Tiles::Tiles(std::span<const std::uint8_t> walls, int width, int height, int horizon)
    : walls_(std::make_shared<std::vector<std::uint8_t>>(walls.begin(), walls.end())),
      width_(width),
      height_(height),
      horizon_(horizon) {}

bool Tiles::stands(Position p) const {
  return p.x >= 0 && p.x < width_ && p.y >= 0 && p.y < height_ && p.x == std::floor(p.x) &&
         p.y == std::floor(p.y) && !wall(tile(p));
}

std::string Tiles::flaw(Position p) const {
  const bool inside = p.x >= 0 && p.x < width_ && p.y >= 0 && p.y < height_ &&
                      p.x == std::floor(p.x) && p.y == std::floor(p.y);
  if (inside) return "it is a wall";
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

Tiles::Walks Tiles::measure(Tile centre, int radius, const std::vector<Tile>& starts,
                            int depth) const {
  Walks walks;
  const int margin = radius + depth;
  walks.depth = depth;
  walks.x0 = std::max(0, centre.x - margin);
  walks.y0 = std::max(0, centre.y - margin);
  walks.width = std::min(width_, centre.x + margin + 1) - walks.x0;
  walks.height = std::min(height_, centre.y + margin + 1) - walks.y0;
  walks.steps.assign(static_cast<std::size_t>(walks.width * walks.height), FAR);
  std::vector<Tile> edge, following;
  const auto reach = [&](Tile t, int steps) {
    if (!walks.covers(t) || wall(t) || walks.at(t) != FAR) return;
    walks.at(t) = static_cast<std::uint8_t>(steps);
    following.push_back(t);
  };
  for (const Tile start : starts) reach(start, 0);
  for (int steps = 1; steps <= depth && !following.empty(); ++steps) {
    edge.swap(following);
    following.clear();
    for (const auto [x, y] : edge) {
      reach({x + 1, y}, steps);
      reach({x - 1, y}, steps);
      reach({x, y + 1}, steps);
      reach({x, y - 1}, steps);
    }
  }
  return walks;
}

template <class Starts>
const Tiles::Walks& Tiles::kept(Tile centre, int radius, int depth, const Starts& starts) const {
  const std::uint64_t key =
      static_cast<std::uint64_t>(index(centre)) << 20 | static_cast<std::uint64_t>(radius);
  Walks* field = &fields_[key];
  if (!field->steps.empty() && field->depth >= depth) return *field;
  int deep_enough = SHALLOWEST;
  while (deep_enough < depth) deep_enough *= 2;
  Walks deeper = measure(centre, radius, starts(), std::min(deep_enough, horizon_));
  if (fields_.reserve(deeper.steps.size() + sizeof(Walks))) field = &fields_[key];
  *field = std::move(deeper);
  return *field;
}

bool Geodesic::within(Position p, Position q, double radius, double reach) const {
  const double far = radius + reach;
  if (Manhattan::distance(p, q) > far) return false;
  if (far >= horizon() + 1) return true;
  const Tile centre = tile(p);
  const std::uint8_t steps =
      kept(centre, 0, static_cast<int>(far), [&] { return std::vector<Tile>{centre}; }).to(tile(q));
  return steps != FAR && steps <= far;
}

GenAgent::GenAgent(std::span<const std::uint8_t> walls, std::span<const std::int32_t> arenas,
                   int width, int height, double max_velocity, int horizon)
    : Tiles(walls, width, height, horizon),
      arenas_(std::make_shared<std::vector<std::int32_t>>(arenas.begin(), arenas.end())),
      velocity_(static_cast<int>(std::floor(max_velocity))) {}

bool GenAgent::within(Position p, Position q, double radius, double reach) const {
  if (radius < 0) return false;
  const double beyond =
      std::max(0.0, std::abs(p.x - q.x) - radius) + std::max(0.0, std::abs(p.y - q.y) - radius);
  if (beyond > reach) return false;
  if (std::isinf(radius) || reach >= horizon() + 1) return true;
  const Tile centre = tile(p);
  const int edge = static_cast<int>(std::floor(std::min<double>(radius, extent())));
  const std::uint8_t steps =
      kept(centre, edge, static_cast<int>(reach), [&] { return zone(centre, edge); }).to(tile(q));
  return steps != FAR && steps <= reach;
}

std::vector<Tiles::Tile> GenAgent::zone(Tile p, int radius) const {
  const Walks nearby = measure(p, 0, {p}, 2 * velocity_);
  std::vector<std::int32_t> arenas;
  for (const Tile t : square(p, velocity_)) {
    if (nearby.to(t) <= velocity_) arenas.push_back(arena(t));
  }
  std::vector<Tile> own;
  for (const Tile t : square(p, radius + velocity_)) {
    if (arena(t) == arena(p)) own.push_back(t);
  }
  const Walks beside_own = measure(p, radius + velocity_, own, velocity_);
  std::vector<Tile> kept_tiles;
  for (const Tile t : square(p, radius)) {
    const bool arena_near = std::find(arenas.begin(), arenas.end(), arena(t)) != arenas.end();
    if (arena_near || nearby.to(t) != FAR || beside_own.to(t) != FAR) kept_tiles.push_back(t);
  }
  return kept_tiles;
}

Hops::Hops(std::vector<std::int64_t> offsets, std::vector<std::int32_t> neighbours)
    : graph_(std::make_shared<Graph>(Graph{std::move(offsets), std::move(neighbours)})) {}

double Hops::distance(Position p, Position q, double most) const {
  constexpr std::size_t BYTES_PER_NODE = 64;
  const auto start = static_cast<std::int32_t>(p.x), goal = static_cast<std::int32_t>(q.x);
  fields_.reserve(std::exchange(grown_, 0));
  Field& field = fields_[static_cast<std::uint64_t>(start)];
  if (field.queue.empty()) {
    field.queue.push_back(start);
    field.hops.emplace(start, 0);
  }
  while (!field.hops.contains(goal) && field.next < field.queue.size()) {
    const std::int32_t node = field.queue[field.next];
    const std::int32_t hops = field.hops.at(node) + 1;
    if (hops > most) break;
    ++field.next;
    for (const std::int32_t neighbour : graph_->of(static_cast<std::size_t>(node))) {
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

}  // namespace metropolis
