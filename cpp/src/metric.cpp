#include "metropolis/metric.hpp"

#include <limits>
#include <utility>

namespace metropolis {

namespace {

constexpr std::uint8_t FAR = 255;
constexpr int SHALLOWEST = 16;  // most questions reach no further, and a small field is cheap

}  // namespace

Geodesic::Geodesic(std::span<const std::uint8_t> walls, int width, int height, int horizon)
    : walls_(std::make_shared<std::vector<std::uint8_t>>(walls.begin(), walls.end())),
      width_(width),
      height_(height),
      horizon_(horizon) {}

bool Geodesic::within(Position p, Position q, double radius, double reach) const {
  if (radius < 0) return false;
  const double beyond =
      std::max(0.0, std::abs(p.x - q.x) - radius) + std::max(0.0, std::abs(p.y - q.y) - radius);
  if (beyond > reach) return false;
  if (beyond == 0 || reach >= horizon_ + 1) return true;
  const Walks& field = walks(static_cast<int>(p.x), static_cast<int>(p.y),
                             static_cast<int>(std::floor(radius)), static_cast<int>(reach));
  const int x = static_cast<int>(q.x) - field.x0, y = static_cast<int>(q.y) - field.y0;
  if (x < 0 || x >= field.width || y < 0 || y >= field.height) return false;
  const std::uint8_t steps = field.steps[static_cast<std::size_t>(y * field.width + x)];
  return steps != FAR && steps <= reach;
}

bool Geodesic::stands(Position p) const {
  return p.x >= 0 && p.x < width_ && p.y >= 0 && p.y < height_ && p.x == std::floor(p.x) &&
         p.y == std::floor(p.y) && !wall(static_cast<int>(p.x), static_cast<int>(p.y));
}

std::string Geodesic::flaw(Position p) const {
  const bool inside = p.x >= 0 && p.x < width_ && p.y >= 0 && p.y < height_ &&
                      p.x == std::floor(p.x) && p.y == std::floor(p.y);
  if (inside) return "it is a wall";
  return "it must be a tile of the map, which is " + std::to_string(width_) + " x " +
         std::to_string(height_);
}

const Geodesic::Walks& Geodesic::walks(int x, int y, int radius, int depth) const {
  const auto unsigned_of = [](int i) { return static_cast<std::uint64_t>(i); };
  const std::uint64_t key =
      (unsigned_of(y) * unsigned_of(width_) + unsigned_of(x)) << 20 | unsigned_of(radius);
  Walks* field = &fields_[key];
  if (field->depth >= depth) return *field;
  int deep_enough = SHALLOWEST;
  while (deep_enough < depth) deep_enough *= 2;
  Walks wider;
  wider.depth = std::min(deep_enough, horizon_);
  const int margin = radius + wider.depth;
  wider.x0 = std::max(0, x - margin);
  wider.y0 = std::max(0, y - margin);
  wider.width = std::min(width_, x + margin + 1) - wider.x0;
  wider.height = std::min(height_, y + margin + 1) - wider.y0;
  const auto tiles = static_cast<std::size_t>(wider.width) * static_cast<std::size_t>(wider.height);
  if (fields_.reserve(tiles + sizeof(Walks))) field = &fields_[key];
  wider.steps.assign(tiles, FAR);
  measure(wider, x, y, radius);
  *field = std::move(wider);
  return *field;
}

void Geodesic::measure(Walks& walks, int x, int y, int radius) const {
  std::vector<std::pair<int, int>> edge, following;
  const auto reach = [&](int i, int j, int steps) {
    if (i < walks.x0 || i >= walks.x0 + walks.width || j < walks.y0 ||
        j >= walks.y0 + walks.height || wall(i, j)) {
      return;
    }
    auto& known =
        walks.steps[static_cast<std::size_t>((j - walks.y0) * walks.width + i - walks.x0)];
    if (known != FAR) return;
    known = static_cast<std::uint8_t>(steps);
    following.emplace_back(i, j);
  };
  for (int j = y - radius; j <= y + radius; ++j) {
    for (int i = x - radius; i <= x + radius; ++i) reach(i, j, 0);
  }
  for (int steps = 1; steps <= walks.depth && !following.empty(); ++steps) {
    edge.swap(following);
    following.clear();
    for (const auto& [i, j] : edge) {
      reach(i + 1, j, steps);
      reach(i - 1, j, steps);
      reach(i, j + 1, steps);
      reach(i, j - 1, steps);
    }
  }
}

Hops::Hops(std::vector<std::int64_t> offsets, std::vector<std::int32_t> neighbours)
    : graph_(std::make_shared<Graph>(Graph{std::move(offsets), std::move(neighbours)})) {}

double Hops::distance(Position p, Position q) const {
  constexpr std::int32_t UNREACHED = -1;
  const auto key = static_cast<std::uint64_t>(p.x);
  std::vector<std::int32_t>* hops = &fields_[key];
  if (hops->empty()) {
    if (fields_.reserve(graph_->nodes() * sizeof(std::int32_t))) hops = &fields_[key];
    hops->assign(graph_->nodes(), UNREACHED);
    std::vector<std::size_t> queue{static_cast<std::size_t>(key)};
    (*hops)[queue.front()] = 0;
    for (std::size_t i = 0; i < queue.size(); ++i) {
      const std::size_t node = queue[i];
      for (auto edge = graph_->offsets[node]; edge < graph_->offsets[node + 1]; ++edge) {
        const auto next =
            static_cast<std::size_t>(graph_->neighbours[static_cast<std::size_t>(edge)]);
        if ((*hops)[next] != UNREACHED) continue;
        (*hops)[next] = (*hops)[node] + 1;
        queue.push_back(next);
      }
    }
  }
  const std::int32_t count = (*hops)[static_cast<std::size_t>(q.x)];
  return count == UNREACHED ? std::numeric_limits<double>::infinity() : count;
}

bool Hops::stands(Position p) const {
  return p.x >= 0 && p.x < static_cast<double>(graph_->nodes()) && p.x == std::floor(p.x) &&
         p.y == 0;
}

std::string Hops::flaw(Position) const {
  return "it must be (node, 0) with a node below " + std::to_string(graph_->nodes());
}

}  // namespace metropolis
