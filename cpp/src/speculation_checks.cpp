#include "speculation_checks.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "metropolis/checks.hpp"

namespace metropolis {

namespace {

void refuse(ExecutionId id, const std::string& flaw) {
  throw std::invalid_argument(name_of(id) + " " + flaw);
}

void check_radius(const char* name, double radius) {
  if (radius >= 0 && radius <= RADIUS_MAX) return;
  throw std::invalid_argument(std::string("the ") + name + " radius is " + format_number(radius) +
                              "; it must be from 0 to " + format_number(RADIUS_MAX));
}

std::string name_of_entity(EntityId entity) {
  return "the entity " + std::to_string(entity);
}

// The flaw of an entity; empty: none.
std::string flaw_of(EntityId entity) {
  if (entity >= 0 && entity <= ENTITY_MAX) return "";
  return name_of_entity(entity) + "; entities are numbered from 0 to " + std::to_string(ENTITY_MAX);
}

// The flaw of an entity and its position; empty: none.
std::string flaw_of(const Metric& metric, const Sighting& one) {
  const auto flaw = metropolis::flaw(metric, one.position);
  if (!flaw) return flaw_of(one.entity);
  return name_of_entity(one.entity) + " at " + format_position(one.position) + ": " + *flaw;
}

void check(ExecutionId id, const char* verb, const std::string& flaw) {
  if (!flaw.empty()) refuse(id, std::string(verb) + " " + flaw);
}

bool in_order(const Question& question, const std::vector<Sighting>& answer) {
  switch (question.kind) {
    case Question::Kind::ENTITY:
      return answer.empty() || (answer.size() == 1 && answer[0].entity == question.entity);
    case Question::Kind::ENTITIES:
      return std::ranges::adjacent_find(answer, std::ranges::greater_equal{}, &Sighting::entity) ==
             answer.end();
    case Question::Kind::EVENTS:
      return std::ranges::is_sorted(answer, {}, &Sighting::entity);
  }
  return false;
}

}  // namespace

std::string name_of(ExecutionId id) {
  return "the execution " + std::to_string(id);
}

void check_speculation(const Controller& controller, const Metric& metric,
                       const SpeculationOptions& options, std::span<const EntityId> bodies,
                       std::span<const Sighting> entities, std::span<const Digest> minds) {
  check_radius("perception", options.perception_radius);
  check_radius("cluster", options.cluster_radius);
  if (bodies.size() != controller.agents() || minds.size() != bodies.size() ||
      options.target_step != controller.target()) {
    throw std::invalid_argument("the controller runs " + std::to_string(controller.agents()) +
                                " agents to step " + std::to_string(controller.target()) +
                                "; the speculation has " + std::to_string(bodies.size()) +
                                " bodies and " + std::to_string(minds.size()) +
                                " minds, and runs to step " + std::to_string(options.target_step));
  }
  std::vector<EntityId> known;
  for (const Sighting& one : entities) {
    const std::string flaw = flaw_of(metric, one);
    if (!flaw.empty()) throw std::invalid_argument("there cannot be " + flaw);
    known.push_back(one.entity);
  }
  const auto check_once = [](std::vector<EntityId>& numbers, const std::string& what) {
    std::ranges::sort(numbers);
    const auto twice = std::ranges::adjacent_find(numbers);
    if (twice == numbers.end()) return;
    throw std::invalid_argument("the entity " + std::to_string(*twice) + " is " + what);
  };
  check_once(known, "given twice");
  for (const EntityId body : bodies) {
    if (std::ranges::binary_search(known, body)) continue;
    throw std::invalid_argument("the body " + std::to_string(body) + " is not one of the entities");
  }
  std::vector<EntityId> sorted(bodies.begin(), bodies.end());
  check_once(sorted, "the body of two agents");
}

void check_reads(const Metric& metric, ExecutionId id, const Reads& reads) {
  for (const auto& [question, answer] : reads) {
    if (question.kind == Question::Kind::ENTITY) {
      check(id, "asks about", flaw_of(question.entity));
    } else {
      if (std::isnan(question.radius)) refuse(id, "asks with a radius that is not a number");
      if (const auto flaw = metropolis::flaw(metric, question.centre)) {
        refuse(id, "asks about " + format_position(question.centre) + ": " + *flaw);
      }
    }
    for (const Sighting& one : answer) check(id, "reads", flaw_of(metric, one));
    if (!in_order(question, answer)) refuse(id, "reads an answer that is not in order");
  }
}

void check_writes(const Metric& metric, ExecutionId id, std::vector<Write> writes) {
  for (const Write& write : writes) {
    check(id, "writes", write.value ? flaw_of(metric, *write.value) : flaw_of(write.entity));
  }
  std::ranges::sort(writes, {}, &Write::entity);
  const auto twice = std::ranges::adjacent_find(writes, {}, &Write::entity);
  if (twice != writes.end()) {
    refuse(id, "writes the entity " + std::to_string(twice->entity) + " twice");
  }
}

void check_events(const Metric& metric, ExecutionId id, const std::vector<Sighting>& events) {
  for (const Sighting& event : events) check(id, "emits an event of", flaw_of(metric, event));
}

void check_minds(ExecutionId id, std::span<const AgentId> members, const std::vector<Mind>& minds) {
  std::vector<AgentId> agents;
  for (const Mind& mind : minds) agents.push_back(mind.agent);
  if (std::ranges::equal(agents, members)) return;
  refuse(id, "has the minds of " + (agents.empty() ? "nobody" : format_agents(agents)) +
                 "; it needs those of " + format_agents(members));
}

void check_forecasts(const Metric& metric, ExecutionId id, const std::vector<AgentId>& members,
                     const std::vector<Forecast>& forecasts) {
  for (const auto& [agent, bodies] : forecasts) {
    if (!std::ranges::binary_search(members, agent)) {
      refuse(id, "has a forecast of agent " + std::to_string(agent) + ", which is no member");
    }
    for (const Sighting& body : bodies) {
      const auto flaw = metropolis::flaw(metric, body.position);
      if (flaw) {
        refuse(id, "has a forecast of agent " + std::to_string(agent) + " at " +
                       format_position(body.position) + ": " + *flaw);
      }
    }
  }
}

}  // namespace metropolis
