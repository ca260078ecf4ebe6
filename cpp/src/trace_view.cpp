// Checks of a trace's columns before a replay indexes them.
#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "metropolis/replay.hpp"

namespace metropolis {

namespace {

std::invalid_argument fault(const std::string& what) {
  return std::invalid_argument("replay: " + what);
}

void check_length(std::size_t length, std::size_t expected, const char* column) {
  if (length == expected) return;
  throw fault("column " + std::string(column) + " has " + std::to_string(length) +
              " values, but must have " + std::to_string(expected));
}

// Throws unless `offsets` divide a column of `length` values.
void check_offsets(std::span<const std::int64_t> offsets, std::size_t length, const char* column) {
  if (offsets.front() == 0 && offsets.back() == static_cast<std::int64_t>(length) &&
      std::ranges::is_sorted(offsets)) {
    return;
  }
  throw fault("column " + std::string(column) + " must ascend from 0 to " + std::to_string(length));
}

// Throws unless every call is where call_offsets puts it.
void check_call_rows(const TraceView& trace) {
  for (std::size_t row = 0; row + 1 < trace.call_offsets.size(); ++row) {
    const auto step = static_cast<Step>(row / static_cast<std::size_t>(trace.agents));
    const auto agent = static_cast<AgentId>(row % static_cast<std::size_t>(trace.agents));
    const auto end = static_cast<std::size_t>(trace.call_offsets[row + 1]);
    for (auto call = static_cast<std::size_t>(trace.call_offsets[row]); call < end; ++call) {
      if (trace.call_step[call] == step && trace.call_agent[call] == agent) continue;
      throw fault("call " + std::to_string(call) + " is of step " +
                  std::to_string(trace.call_step[call]) + " and agent " +
                  std::to_string(trace.call_agent[call]) + ", but stands among those of step " +
                  std::to_string(step) + " and agent " + std::to_string(agent));
    }
  }
}

// Whether the parents are acyclic, by depth-first search.
bool acyclic(const TraceView& trace) {
  const std::size_t calls = trace.call_step.size();
  std::vector<std::uint8_t> seen(calls, 0);  // 1: on the path, 2: done
  std::vector<std::pair<std::size_t, std::size_t>> path;
  for (std::size_t start = 0; start < calls; ++start) {
    if (seen[start] == 0) path.emplace_back(start, 0);
    while (!path.empty()) {
      auto& [call, next] = path.back();
      seen[call] = 1;
      const auto parents = trace.parents_of(call);
      if (next == parents.size()) {
        seen[call] = 2;
        path.pop_back();
        continue;
      }
      const auto parent = static_cast<std::size_t>(parents[next++]);
      if (seen[parent] == 1) return false;
      if (seen[parent] == 0) path.emplace_back(parent, 0);
    }
  }
  return true;
}

void check_parents(const TraceView& trace) {
  const std::size_t calls = trace.call_step.size();
  bool before = true;  // whether all parents are before their children: then there is no cycle
  for (std::size_t call = 0; call < calls; ++call) {
    for (const std::int64_t parent : trace.parents_of(call)) {
      const auto index = static_cast<std::size_t>(parent);
      if (index >= calls || trace.call_step[index] != trace.call_step[call]) {
        throw fault("parent " + std::to_string(parent) + " of call " + std::to_string(call) +
                    " is not a call of the same step");
      }
      before &= index < call;
    }
  }
  if (!before && !acyclic(trace)) throw fault("the parents of calls form a cycle");
}

void check_dependencies(const TraceView& trace, std::size_t rows) {
  if (!trace.knows_values()) return;
  check_length(trace.value_offsets.size(), rows + 1, "value_offsets");
  check_length(trace.value_ago.size(), trace.value_writers.size(), "value_ago");
  check_offsets(trace.value_offsets, trace.value_writers.size(), "value_offsets");
  for (std::size_t i = 0; i < trace.value_writers.size(); ++i) {
    const AgentId writer = trace.value_writers[i];
    if (writer >= 0 && writer < trace.agents && trace.value_ago[i] >= 1) continue;
    throw fault("dependency " + std::to_string(i) + " is on agent " + std::to_string(writer) + " " +
                std::to_string(trace.value_ago[i]) + " steps ago; the agent must be below " +
                std::to_string(trace.agents) + ", the steps at least 1");
  }
}

}  // namespace

void check_trace(const TraceView& trace) {
  if (trace.steps < 1 || trace.agents < 1) {
    throw fault("a trace of " + std::to_string(trace.steps) + " steps of " +
                std::to_string(trace.agents) + " agents; it needs at least one of each");
  }
  const auto rows = static_cast<std::size_t>(trace.steps) * static_cast<std::size_t>(trace.agents);
  const std::size_t calls = trace.prompt_tokens.size();
  check_length(trace.positions.size(), 2 * rows, "positions");
  check_length(trace.call_offsets.size(), rows + 1, "call_offsets");
  check_length(trace.parent_offsets.size(), calls + 1, "parent_offsets");
  check_length(trace.call_step.size(), calls, "call_step");
  check_length(trace.call_agent.size(), calls, "call_agent");
  check_length(trace.output_tokens.size(), calls, "output_tokens");
  check_length(trace.prefix_id.size(), calls, "prefix_id");
  check_length(trace.prefix_tokens.size(), calls, "prefix_tokens");
  check_offsets(trace.call_offsets, calls, "call_offsets");
  check_offsets(trace.parent_offsets, trace.parents.size(), "parent_offsets");
  check_call_rows(trace);
  check_parents(trace);
  check_dependencies(trace, rows);
}

}  // namespace metropolis
