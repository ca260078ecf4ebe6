#include "metropolis/checks.hpp"

#include <cmath>
#include <cstdio>
#include <variant>

namespace metropolis {

std::string format_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::string format_agents(std::span<const AgentId> agents) {
  std::string text;
  for (const AgentId agent : agents) {
    if (!text.empty()) text += ", ";
    text += std::to_string(agent);
  }
  return text;
}

std::string format_position(Position position) {
  char text[64];
  std::snprintf(text, sizeof text, "(%g, %g)", position.x, position.y);
  return text;
}

std::string not_running(AgentId agent) {
  return "agent " + std::to_string(agent) + " is not running; commit exactly what was dispatched";
}

std::string not_a_cluster(std::span<const AgentId> dispatched, std::span<const AgentId> committed) {
  return "agent " + std::to_string(committed[0]) + " was dispatched in the cluster " +
         format_agents(dispatched) + " and committed in " + format_agents(committed) +
         "; commit exactly what was dispatched";
}

std::string wrong_shape(std::size_t agents, std::size_t positions) {
  return "a commit of " + std::to_string(agents) + " agents carries " + std::to_string(positions) +
         " positions; it needs at least one agent and one position for each";
}

std::string invalid_position(AgentId agent, Position position, const std::string& flaw) {
  return "agent " + std::to_string(agent) + " cannot stand at " + format_position(position) + ": " +
         flaw;
}

std::string too_far(AgentId agent, Position from, Position to, Step step, double max_velocity) {
  return "agent " + std::to_string(agent) + " moved from " + format_position(from) + " to " +
         format_position(to) + " at step " + std::to_string(step) + ", further than the velocity " +
         format_number(max_velocity);
}

void check_first_start(bool& started) {
  if (started) throw std::invalid_argument("the controller has been started before");
  started = true;
}

void check_agent(AgentId agent, std::size_t count) {
  if (agent >= 0 && static_cast<std::size_t>(agent) < count) return;
  throw std::invalid_argument("there is no agent " + std::to_string(agent) + " among " +
                              std::to_string(count));
}

namespace {

void check_rule(const Rule& rule) {
  if (!(rule.couple_radius <= rule.block_radius)) {
    throw std::invalid_argument("the couple radius " + format_number(rule.couple_radius) +
                                " exceeds the block radius " + format_number(rule.block_radius) +
                                "; a cluster that may run could still grow");
  }
  if (std::isinf(rule.block_radius) && rule.couple_radius != rule.block_radius) {
    throw std::invalid_argument("the block radius is infinite and the couple radius " +
                                format_number(rule.couple_radius) +
                                " is not; both or neither must be");
  }
  for (const double radius : {rule.couple_radius, rule.block_radius}) {
    if (std::isinf(radius) || std::abs(radius) <= RADIUS_MAX) continue;
    throw std::invalid_argument("a radius is " + format_number(radius) +
                                "; it must be infinite or within ±" + format_number(RADIUS_MAX));
  }
}

void check_velocity(double max_velocity) {
  if (max_velocity >= 0 && max_velocity <= VELOCITY_MAX) return;
  const bool is_large = max_velocity > 0 && std::isfinite(max_velocity);
  throw std::invalid_argument(
      "the velocity is " + format_number(max_velocity) + "; it must be " +
      (is_large ? "at most " + format_number(VELOCITY_MAX) : "finite and >= 0"));
}

void check_target(Step target_step) {
  if (target_step >= 0 && target_step <= STEP_MAX) return;
  throw std::invalid_argument("the target step is " + std::to_string(target_step) +
                              "; it must be " +
                              (target_step < 0 ? ">= 0" : "at most " + std::to_string(STEP_MAX)));
}

void check_steps(const Rule& rule, std::span<const Step> steps, Step target_step) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto refuse = [&](const std::string& flaw) {
      throw std::invalid_argument("agent " + std::to_string(i) + " starts at step " +
                                  std::to_string(steps[i]) + flaw);
    };
    const auto refuse_both = [&](const std::string& flaw) {
      refuse(" and agent 0 at " + std::to_string(steps[0]) + flaw);
    };
    if (steps[i] < 0 || steps[i] > target_step) {
      refuse("; it must be from 0 to " + std::to_string(target_step));
    }
    if (std::abs(steps[i] - steps[0]) > SKEW_MAX) {
      refuse_both("; they must be at most " + std::to_string(SKEW_MAX) + " steps apart");
    }
    if (rule.is_lockstep() && steps[i] != steps[0]) {
      refuse_both(
          "; in lockstep all start together: continue out of order first, or from a checkpoint, "
          "with the store memory");
    }
  }
}

}  // namespace

void check_start(const Rule& rule, const Metric& metric, double max_velocity,
                 std::span<const Position> positions, std::span<const Step> steps,
                 Step target_step) {
  check_rule(rule);
  check_velocity(max_velocity);
  check_target(target_step);
  if (!steps.empty() && steps.size() != positions.size()) {
    throw std::invalid_argument("there are " + std::to_string(steps.size()) + " steps for " +
                                std::to_string(positions.size()) + " agents");
  }
  check_steps(rule, steps, target_step);
  std::visit(
      [&](const auto& chosen) {
        for (std::size_t i = 0; i < positions.size(); ++i) {
          if (chosen.stands(positions[i])) continue;
          throw std::invalid_argument(
              invalid_position(static_cast<AgentId>(i), positions[i], chosen.flaw(positions[i])));
        }
      },
      metric);
}

}  // namespace metropolis
