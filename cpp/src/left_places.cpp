#include "metropolis/left_places.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <ranges>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <variant>

#include "metropolis/checks.hpp"

namespace metropolis {

namespace {

// The nodes at most `radius` hops from `node`.
std::vector<std::int32_t> ball(const Hops::Graph& graph, std::int32_t node, double radius) {
  std::vector<std::int32_t> nodes{node};
  std::unordered_set<std::int32_t> reached{node};
  std::size_t begin = 0;
  for (double hops = 1; hops <= radius && begin < nodes.size(); ++hops) {
    for (const std::size_t end = nodes.size(); begin < end; ++begin) {
      for (const std::int32_t other : graph.neighbours_of(static_cast<std::size_t>(nodes[begin]))) {
        if (reached.insert(other).second) nodes.push_back(other);
      }
    }
  }
  return nodes;
}

}  // namespace

LeftPlaces::LeftPlaces(Metric metric, double cell_size)
    : metric_(std::move(metric)), size_(cell_size) {
  if (!(cell_size >= 1)) {
    throw std::invalid_argument("cell_size is " + format_number(cell_size) +
                                "; it must be at least 1");
  }
}

void LeftPlaces::leave(Entity entity, Position place, Step step, Change change) {
  check(place);
  if (searches_ > 0) {
    throw std::invalid_argument("a place is left during a search for what is unknown");
  }
  if (step < step_) {
    throw std::invalid_argument("a place is left in step " + std::to_string(step) + " after one " +
                                "in step " + std::to_string(step_) + "; steps are in order");
  }
  step_ = step;
  std::vector<Leaver>& leavers = cells_[cell(place.x, place.y)].leavers;
  const AgentId writer = change.size() == 1 ? change[0].first : SEVERAL;
  // The last ones are most likely to leave again.
  const auto found = std::ranges::find(leavers | std::views::reverse, entity, &Leaver::entity);
  if (found == leavers.rend()) {
    leavers.push_back({entity, writer, {}});
  } else {
    std::rotate(std::prev(found.base()), found.base(), leavers.end());
  }
  Leaver& leaver = leavers.back();
  if (leaver.writer != writer) leaver.writer = SEVERAL;
  std::erase_if(leaver.left, [&](const Left& left) { return left.place == place; });
  leaver.left.push_back({place, step, std::move(change)});
}

bool LeftPlaces::has_left(Position centre, double radius, Step since) {
  for (const Leavers* there : near(centre, radius)) {
    for (const Leaver& leaver : there->leavers | std::views::reverse) {
      if (leaver.left.back().step <= since) break;
      for (const Left& left : leaver.left | std::views::reverse) {
        if (left.step <= since) break;
        if (perceives(centre, left.place, radius)) return true;
      }
    }
  }
  return false;
}

std::vector<std::pair<LeftPlaces::Entity, LeftPlaces::Change>> LeftPlaces::unknown_to(
    AgentId agent, const Known& known, Position centre, double radius, std::optional<Step> since) {
  const Search search(searches_);
  std::vector<std::pair<Entity, Change>> unknown;
  for (Leavers* there : near(centre, radius)) {
    const auto checked = there->checked.find(agent);
    Step first = -1;
    if (since) {
      first = *since;
    } else if (checked != there->checked.end()) {
      first = checked->second;
    }
    std::optional<Step> newest;
    for (const Leaver& leaver : there->leavers | std::views::reverse) {
      const Left& last = leaver.left.back();
      if (last.step <= first) break;
      const bool alone = leaver.writer != SEVERAL;
      const std::int64_t known_step = alone ? known(leaver.writer) : -1;
      const auto is_known = [&](const Left& left) {
        if (alone) return left.step <= known_step;
        return std::ranges::all_of(
            left.change, [&](const auto& need) { return need.second <= known(need.first); });
      };
      if (!newest) newest = last.step;
      if (is_known(last)) continue;
      newest = last.step - 1;
      for (const Left& left : leaver.left | std::views::reverse) {
        if (since && left.step <= first) break;
        if (is_known(left)) {
          if (alone) break;
        } else if (perceives(centre, left.place, radius)) {
          unknown.emplace_back(leaver.entity, left.change);
          if (alone) break;
        }
      }
    }
    if (!since && newest) there->checked[agent] = *newest;
  }
  return unknown;
}

void LeftPlaces::check(Position place) const {
  if (const auto why = flaw(metric_, place)) {
    throw std::invalid_argument("no entity can stand at " + format_position(place) + ": " + *why);
  }
}

bool LeftPlaces::perceives(Position p, Position q, double radius) const {
  return std::visit([&](const auto& metric) { return metric.perceives(p, q, radius); }, metric_);
}

LeftPlaces::Cell LeftPlaces::cell(double x, double y) const {
  const double size = std::holds_alternative<Hops>(metric_) ? 1 : size_;
  return {static_cast<std::int64_t>(std::floor(x / size)),
          static_cast<std::int64_t>(std::floor(y / size))};
}

std::vector<LeftPlaces::Leavers*> LeftPlaces::near(Position centre, double radius) {
  check(centre);
  if (!(radius <= size_ || std::isinf(radius))) {
    throw std::invalid_argument("the radius is " + format_number(radius) +
                                "; it must be infinite, or at most " + format_number(size_));
  }
  std::vector<Leavers*> found;
  if (radius < 0) return found;
  const auto add = [&](Cell cell) {
    const auto there = cells_.find(cell);
    if (there != cells_.end()) found.push_back(&there->second);
  };
  if (std::isinf(radius)) {
    for (auto& [_, there] : cells_) found.push_back(&there);
  } else if (const Hops* hops = std::get_if<Hops>(&metric_)) {
    const auto node = static_cast<std::int32_t>(centre.x);
    for (const std::int32_t other : ball(*hops->graph(), node, radius)) add({other, 0});
  } else {
    const double far = radius + ROUNDING;
    const Cell low = cell(centre.x - far, centre.y - far);
    const Cell high = cell(centre.x + far, centre.y + far);
    for (std::int64_t x = low.first; x <= high.first; ++x) {
      for (std::int64_t y = low.second; y <= high.second; ++y) add({x, y});
    }
  }
  return found;
}

}  // namespace metropolis
