#include "speculation_versions.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "speculation_checks.hpp"

namespace metropolis {

namespace {

constexpr double WIDE = 16;  // in cells: beyond it, all entities are visited

std::size_t index(EntityId entity) {
  return static_cast<std::size_t>(entity);
}

CellKey key_of(std::int64_t column, std::int64_t row) {
  return static_cast<CellKey>(column) << 32 | (static_cast<CellKey>(row) & 0xffffffffu);
}

}  // namespace

SpeculationVersions::SpeculationVersions(Metric metric, double radius)
    : metric_(std::move(metric)),
      planar_(std::visit([](const auto& chosen) { return chosen.PLANAR; }, metric_)),
      radius_(radius),
      side_(std::max(1.0, 2 * radius)) {}

void SpeculationVersions::add_initial(const Sighting& value) {
  insert(value.entity, {0, value, nullptr});
}

void SpeculationVersions::put(const ResultPointer& result, std::vector<ValueChange>& changes) {
  for (const Write& write : result->writes) {
    insert(write.entity, {result->step + 1, write.value, result});
    report(write.entity, result->step + 1, changes);
  }
  if (result->events.empty()) return;
  auto& events = events_[result->step + 1];
  for (const Sighting& event : result->events) events.emplace_back(event, result);
}

void SpeculationVersions::drop(const ResultPointer& result, std::vector<ValueChange>& changes) {
  for (const Write& write : result->writes) {
    const auto found = written(write.entity, *result);
    const std::size_t reported = changes.size();
    report(write.entity, result->step + 1, changes);
    if (changes.size() != reported) std::swap(changes.back().before, changes.back().now);
    forget(write.entity, *found);
    versions_[index(write.entity)].erase(found);
  }
  const auto events = events_.find(result->step + 1);
  if (events == events_.end()) return;
  std::erase_if(events->second, [&](const auto& one) { return one.second == result; });
  if (events->second.empty()) events_.erase(events);
}

void SpeculationVersions::finalise(SpeculationResult& result) {
  result.final = true;
  for (const Write& write : result.writes) {
    written(write.entity, result)->result = nullptr;
  }
}

void SpeculationVersions::collect(Step floor) {
  events_.erase(events_.begin(), events_.lower_bound(floor));
  while (!stale_.empty() && stale_.begin()->first <= floor) {
    for (const EntityId entity : stale_.begin()->second) collect(entity, floor);
    stale_.erase(stale_.begin());
  }
}

const Sighting* SpeculationVersions::value(EntityId entity, Step step, bool final) const {
  if (index(entity) >= versions_.size()) return nullptr;
  const auto& versions = versions_[index(entity)];
  auto after = std::ranges::upper_bound(versions, step, {}, &Version::since);
  while (after != versions.begin()) {
    --after;
    if (!final || !after->result) return after->value ? &*after->value : nullptr;
  }
  return nullptr;
}

std::vector<Sighting> SpeculationVersions::answer(const Question& question, Step step,
                                                  bool final) const {
  std::vector<Sighting> found;
  const auto perceived = [&](Position there) {
    return std::visit(
        [&](const auto& metric) {
          return metric.perceives(question.centre, there, question.radius);
        },
        metric_);
  };
  switch (question.kind) {
    case Question::Kind::ENTITY:
      if (const Sighting* known = value(question.entity, step, final)) found.push_back(*known);
      break;
    case Question::Kind::ENTITIES:
      for_near(question.centre, question.radius, step, final, [&](const Sighting& one) {
        if (perceived(one.position)) found.push_back(one);
      });
      std::ranges::sort(found, {}, &Sighting::entity);
      break;
    case Question::Kind::EVENTS:
      if (const auto events = events_.find(step); events != events_.end()) {
        for (const auto& [event, result] : events->second) {
          if ((!final || result->final) && perceived(event.position)) found.push_back(event);
        }
        std::ranges::stable_sort(found, {}, &Sighting::entity);
      }
      break;
  }
  return found;
}

std::vector<Sighting> SpeculationVersions::Search::take(Position centre) {
  std::vector<Sighting> found;
  if (!first_) {  // as most searches end here, they make no lists
    first_ = centre;
    versions_.for_near(centre, radius_, step_, false, [&](const Sighting& one) {
      if (is_near(centre, one)) found.push_back(one);
    });
    return found;
  }
  const bool has_cells = versions_.has_cells(radius_);
  const auto take_from = [&](CellKey key) {
    const auto [cell, is_new] = left_.try_emplace(key);
    std::vector<const Sighting*>& left = cell->second;
    const auto add = [&](const Sighting& one) {
      if (!is_near(*first_, one)) left.push_back(&one);
    };
    if (is_new && has_cells) versions_.for_cell(key, step_, false, add);
    if (is_new && !has_cells) versions_.for_all(step_, false, add);
    const auto taken =
        std::ranges::partition(left, [&](const Sighting* one) { return !is_near(centre, *one); });
    for (const Sighting* one : taken) found.push_back(*one);
    left.erase(taken.begin(), taken.end());
  };
  if (has_cells) {
    versions_.for_cells(centre, radius_, take_from);
  } else {
    take_from(0);
  }
  return found;
}

bool SpeculationVersions::Search::is_near(Position centre, const Sighting& one) const {
  return std::visit(
      [&](const auto& metric) { return metric.within(centre, one.position, radius_, 0); },
      versions_.metric_);
}

std::optional<CellKey> SpeculationVersions::cell_of(const Question& question) const {
  if (!planar_ || !(question.radius <= radius_)) return std::nullopt;
  return cell_at(question.centre);
}

void SpeculationVersions::cells_around(Position position, std::vector<CellKey>& cells) const {
  if (!planar_) return;
  for_cells(position, radius_, [&](CellKey key) { cells.push_back(key); });
}

const SpeculationResult* SpeculationVersions::writer(EntityId entity, Step step) const {
  const Version* found = beginning(entity, step + 1);
  return found != nullptr ? found->result.get() : nullptr;
}

bool SpeculationVersions::is_final(EntityId entity, Step step) const {
  const Version* found = beginning(entity, step + 1);
  return found != nullptr && !found->result;
}

std::vector<SpeculationVersions::Version>::iterator SpeculationVersions::written(
    EntityId entity, const SpeculationResult& result) {
  auto& versions = versions_[index(entity)];
  const auto found =
      std::ranges::find(versions, &result, [](const Version& one) { return one.result.get(); });
  if (found != versions.end()) return found;
  throw std::invalid_argument("what " + name_of(result.id) +
                              " has written is collected; has its controller been used elsewhere?");
}

const SpeculationVersions::Version* SpeculationVersions::beginning(EntityId entity,
                                                                   Step since) const {
  if (index(entity) >= versions_.size()) return nullptr;
  const auto& versions = versions_[index(entity)];
  const auto found = std::ranges::lower_bound(versions, since, {}, &Version::since);
  return found != versions.end() && found->since == since ? &*found : nullptr;
}

void SpeculationVersions::validate() const {
  for (const auto& versions : versions_) {
    for (std::size_t i = 1; i < versions.size(); ++i) {
      if (versions[i - 1].since >= versions[i].since) {
        throw std::logic_error("two results write the same entity at the same step");
      }
    }
  }
}

CellKey SpeculationVersions::cell_at(Position position) const {
  return key_of(static_cast<std::int64_t>(std::floor(position.x / side_)),
                static_cast<std::int64_t>(std::floor(position.y / side_)));
}

bool SpeculationVersions::has_cells(double radius) const {
  return planar_ && radius <= WIDE * side_;
}

// Visits the values as `step` sees them.
template <class Visit>
void SpeculationVersions::for_all(Step step, bool final, const Visit& visit) const {
  for (std::size_t entity = 0; entity < versions_.size(); ++entity) {
    const Sighting* known = value(static_cast<EntityId>(entity), step, final);
    if (known != nullptr) visit(*known);
  }
}

// Calls visit(key) for each cell within `radius` of `centre`; requires a planar metric.
template <class Visit>
void SpeculationVersions::for_cells(Position centre, double radius, const Visit& visit) const {
  const double far = radius + ROUNDING;
  const auto line = [&](double at) { return static_cast<std::int64_t>(std::floor(at / side_)); };
  const std::int64_t right = line(centre.x + far), bottom = line(centre.y + far);
  for (std::int64_t column = line(centre.x - far); column <= right; ++column) {
    for (std::int64_t row = line(centre.y - far); row <= bottom; ++row) visit(key_of(column, row));
  }
}

// Visits the values, as `step` sees them, in a cell.
template <class Visit>
void SpeculationVersions::for_cell(CellKey key, Step step, bool final, const Visit& visit) const {
  const auto cell = cells_.find(key);
  if (cell == cells_.end()) return;
  for (const auto& [entity, count] : cell->second) {
    const Sighting* known = value(entity, step, final);
    if (known != nullptr && cell_at(known->position) == key) visit(*known);
  }
}

// Visits the values, as `step` sees them, in the cells within `radius` of `centre`.
template <class Visit>
void SpeculationVersions::for_near(Position centre, double radius, Step step, bool final,
                                   const Visit& visit) const {
  if (!has_cells(radius)) return for_all(step, final, visit);
  if (radius < 0) return;  // it may be infinite
  for_cells(centre, radius, [&](CellKey key) { for_cell(key, step, final, visit); });
}

void SpeculationVersions::insert(EntityId entity, Version version) {
  if (index(entity) >= versions_.size()) versions_.resize(index(entity) + 1);
  auto& versions = versions_[index(entity)];
  if (version.value) {
    Cell& cell = cells_[cell_at(version.value->position)];
    const auto found = std::ranges::find(cell, entity, &Cell::value_type::first);
    if (found == cell.end()) {
      cell.emplace_back(entity, 1);
    } else {
      ++found->second;
    }
  }
  if (!versions.empty() || !version.value) stale_[version.since].push_back(entity);
  const auto after = std::ranges::upper_bound(versions, version.since, {}, &Version::since);
  versions.insert(after, std::move(version));
}

void SpeculationVersions::forget(EntityId entity, const Version& version) {
  if (!version.value) return;
  const auto cell = cells_.find(cell_at(version.value->position));
  const auto found = std::ranges::find(cell->second, entity, &Cell::value_type::first);
  if (--found->second == 0) cell->second.erase(found);
  if (cell->second.empty()) cells_.erase(cell);
}

void SpeculationVersions::collect(EntityId entity, Step floor) {
  auto& versions = versions_[index(entity)];
  std::size_t first = 0;
  while (first + 1 < versions.size() && versions[first + 1].since <= floor) ++first;
  if (!versions.empty() && versions[first].since <= floor && !versions[first].value) ++first;
  for (std::size_t i = 0; i < first; ++i) forget(entity, versions[i]);
  versions.erase(versions.begin(), versions.begin() + static_cast<std::ptrdiff_t>(first));
}

// Reports the difference that the version of `entity` that begins with `since` makes.
void SpeculationVersions::report(EntityId entity, Step since,
                                 std::vector<ValueChange>& changes) const {
  const auto& versions = versions_[index(entity)];
  const auto here = std::ranges::lower_bound(versions, since, {}, &Version::since);
  const std::optional<Sighting> before =
      here == versions.begin() ? std::nullopt : std::prev(here)->value;
  if (before == here->value) return;
  const auto after = std::next(here);
  const Step until = after == versions.end() ? std::numeric_limits<Step>::max() : after->since;
  changes.push_back({entity, since, until, before, here->value});
}

}  // namespace metropolis
