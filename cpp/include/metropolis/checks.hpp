// Checks of arguments and their messages, which are those of metropolis/controller/reference.py.
#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

#include "metropolis/metric.hpp"
#include "metropolis/rule.hpp"
#include "metropolis/types.hpp"

namespace metropolis {

inline constexpr double RADIUS_MAX = 1e15;  // of finite radii
inline constexpr double VELOCITY_MAX = 1e9;
inline constexpr Step STEP_MAX = 2'000'000'000;  // leaves room in a Step for a few more steps
inline constexpr Step SKEW_MAX = 10'000'000;     // agents are counted per step ahead of the floor

std::string format_number(double value);                     // "4.5"
std::string format_agents(std::span<const AgentId> agents);  // "1, 2, 5"
std::string format_position(Position position);              // "(3, 4.5)"

// Messages of refused commits.
std::string not_running(AgentId agent);
std::string not_a_cluster(std::span<const AgentId> dispatched, std::span<const AgentId> committed);
std::string wrong_shape(std::size_t agents, std::size_t positions);
std::string invalid_position(AgentId agent, Position position, const std::string& flaw);
std::string too_far(AgentId agent, Position from, Position to, Step step, double max_velocity);

// Throws std::invalid_argument on invalid arguments of make_controller.
void check_start(const Rule& rule, const Metric& metric, double max_velocity,
                 std::span<const Position> positions, std::span<const Step> steps,
                 Step target_step);

// Throws if `started` is set; sets it.
void check_first_start(bool& started);

// Throws unless `agent` is one of `count`.
void check_agent(AgentId agent, std::size_t count);

// Throws unless there is one position per agent and `running(agent)` holds for each.
template <class Running>
void check_commit(std::span<const AgentId> agents, std::span<const Position> positions,
                  std::size_t count, const Running& running) {
  if (agents.empty() || agents.size() != positions.size()) {
    throw std::invalid_argument(wrong_shape(agents.size(), positions.size()));
  }
  for (const AgentId agent : agents) {
    const bool known = agent >= 0 && static_cast<std::size_t>(agent) < count;
    if (!known || !running(agent)) throw std::invalid_argument(not_running(agent));
  }
}

// Throws if `to` is not a valid position, or, with `check_moves`, if it is further than
// `max_velocity` from `from`; without it, returns whether it is further.
template <class M>
bool check_move(const M& metric, AgentId agent, Position from, Position to, Step step,
                double max_velocity, bool check_moves) {
  if (!metric.stands(to)) throw std::invalid_argument(invalid_position(agent, to, metric.flaw(to)));
  if (from == to || metric.within(from, to, 0, max_velocity)) return false;
  if (check_moves) throw std::invalid_argument(too_far(agent, from, to, step, max_velocity));
  return true;
}

}  // namespace metropolis
