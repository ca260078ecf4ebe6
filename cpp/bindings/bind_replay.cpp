#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "bindings.hpp"
#include "columns.hpp"
#include "metropolis/optimistic_replay.hpp"
#include "metropolis/replay.hpp"

namespace py = pybind11;
using namespace metropolis;
using namespace metropolis_bindings;
using namespace pybind11::literals;

namespace {

struct BoundOptimism {
  BoundMetric metric;
  OptimisticOptions options;
};

// Keeps the columns alive that the core borrows, and copies of those that index others.
struct BoundReplay {
  Column<float> positions;
  Column<std::int64_t> call_offsets;
  Column<Step> call_step;
  Column<AgentId> call_agent;
  Column<std::int64_t> parent_offsets, parents;
  Column<std::int32_t> prompt_tokens, output_tokens;
  Column<std::int64_t> prefix_id;
  Column<std::int32_t> prefix_tokens;
  Column<std::int64_t> value_offsets;
  Column<AgentId> value_writers;
  Column<Step> value_ago;
  py::object controller;
  py::object instances;
  std::unique_ptr<TraceReplay> replay;

  TraceView trace() const {
    if (positions.shape(2) != 2 || positions.shape(0) > std::numeric_limits<Step>::max() ||
        positions.shape(1) > std::numeric_limits<AgentId>::max()) {
      throw py::value_error("positions must be an array of the shape (steps, agents, 2)");
    }
    TraceView trace;
    trace.steps = static_cast<Step>(positions.shape(0));
    trace.agents = static_cast<AgentId>(positions.shape(1));
    trace.positions = view(positions);
    trace.call_offsets = view(call_offsets);
    trace.call_step = view(call_step);
    trace.call_agent = view(call_agent);
    trace.parent_offsets = view(parent_offsets);
    trace.parents = view(parents);
    trace.prompt_tokens = view(prompt_tokens);
    trace.output_tokens = view(output_tokens);
    trace.prefix_id = view(prefix_id);
    trace.prefix_tokens = view(prefix_tokens);
    trace.value_offsets = view(value_offsets);
    trace.value_writers = view(value_writers);
    trace.value_ago = view(value_ago);
    return trace;
  }
};

std::unique_ptr<BoundReplay> make_replay(
    const py::object& positions, const py::object& call_offsets, const py::object& call_step,
    const py::object& call_agent, const py::object& parent_offsets, const py::object& parents,
    const py::object& prompt_tokens, const py::object& output_tokens, const py::object& prefix_id,
    const py::object& prefix_tokens, const py::object& value_offsets,
    const py::object& value_writers, const py::object& value_ago, const py::object& controller,
    const py::object& instances, bool step_priority, std::int64_t max_outstanding,
    const std::optional<BoundOptimism>& optimism) {
  auto bound = std::make_unique<BoundReplay>(BoundReplay{
      optimism ? fixed_column<float>(positions, "positions", 3)
               : column_of<float>(positions, "positions", 3),
      fixed_column<std::int64_t>(call_offsets, "call_offsets"),
      fixed_column<Step>(call_step, "call_step"), fixed_column<AgentId>(call_agent, "call_agent"),
      fixed_column<std::int64_t>(parent_offsets, "parent_offsets"),
      fixed_column<std::int64_t>(parents, "parents"),
      column_of<std::int32_t>(prompt_tokens, "prompt_tokens"),
      column_of<std::int32_t>(output_tokens, "output_tokens"),
      column_of<std::int64_t>(prefix_id, "prefix_id"),
      column_of<std::int32_t>(prefix_tokens, "prefix_tokens"),
      fixed_column<std::int64_t>(value_offsets, "value_offsets"),
      fixed_column<AgentId>(value_writers, "value_writers"),
      fixed_column<Step>(value_ago, "value_ago"), controller, instances, nullptr});
  auto& used = checked_cast<Controller>(controller, "controller", "a Controller");
  auto& pool = checked_cast<InstancePool>(instances, "instances", "an InstancePool");
  if (optimism) {
    if (max_outstanding != 0) {
      throw py::value_error("max_outstanding is " + std::to_string(max_outstanding) +
                            "; it must be 0 where agents run ahead");
    }
    OptimisticOptions options = optimism->options;
    options.step_priority = step_priority;
    bound->replay =
        make_optimistic_replay(bound->trace(), used, pool, optimism->metric.metric, options);
  } else {
    bound->replay = std::make_unique<Replay>(bound->trace(), used, pool,
                                             ReplayOptions{step_priority, max_outstanding});
  }
  return bound;
}

// The method that returns a column of the timeline, or of the replay, as an array.
template <class T>
auto of_timeline(std::vector<T> Timeline::* column) {
  return [column](const BoundReplay& self) { return to_numpy(self.replay->timeline().*column); };
}
template <class T>
auto of_replay(const std::vector<T>& (TraceReplay::*column)() const) {
  return [column](const BoundReplay& self) { return to_numpy((*self.replay.*column)()); };
}
// The property that has a number of the replay.
template <class T>
auto number_of(T (TraceReplay::*number)() const) {
  return [number](const BoundReplay& self) { return (*self.replay.*number)(); };
}

}  // namespace

void bind_replay(py::module_& m) {
  py::class_<BoundOptimism>(m, "Optimism", py::is_final())
      .def(py::init([](const BoundMetric& metric, double perception_radius, double max_velocity,
                       double cluster_radius, double risk_max, double calls_half) {
             return BoundOptimism{
                 metric,
                 {perception_radius, max_velocity, cluster_radius, risk_max, calls_half, true}};
           }),
           py::kw_only(), "metric"_a, "perception_radius"_a, "max_velocity"_a, "cluster_radius"_a,
           "risk_max"_a, "calls_half"_a);
  py::class_<BoundReplay>(m, "Replay", py::is_final())
      .def(py::init(&make_replay), py::kw_only(), "positions"_a, "call_offsets"_a, "call_step"_a,
           "call_agent"_a, "parent_offsets"_a, "parents"_a, "prompt_tokens"_a, "output_tokens"_a,
           "prefix_id"_a, "prefix_tokens"_a, "value_offsets"_a, "value_writers"_a, "value_ago"_a,
           "controller"_a, "instances"_a, "step_priority"_a, "max_outstanding"_a,
           "optimism"_a = std::nullopt)
      // Controller and instances belong to Python: holding the GIL keeps other threads from them.
      .def(
          "run", [](BoundReplay& self, std::int64_t n) { return self.replay->run(n); },
          "agent_steps"_a)
      .def_property_readonly("committed_agent_steps",
                             number_of(&TraceReplay::committed_agent_steps))
      .def_property_readonly("makespan_sim_s", number_of(&TraceReplay::makespan_sim_s))
      .def_property_readonly("controller_wall_s", number_of(&TraceReplay::controller_wall_s))
      .def_property_readonly("sent_calls", number_of(&TraceReplay::sent_calls))
      .def("sent_sim_s", of_timeline(&Timeline::sent_sim_s))
      .def("first_token_sim_s", of_timeline(&Timeline::first_token_sim_s))
      .def("preempted_sim_s", of_timeline(&Timeline::preempted_sim_s))
      .def("completed_sim_s", of_timeline(&Timeline::completed_sim_s))
      .def("instance", of_timeline(&Timeline::instance))
      .def("dispatched_sim_s", of_replay(&TraceReplay::dispatched_sim_s))
      .def("committed_sim_s", of_replay(&TraceReplay::committed_sim_s))
      .def("blocked_by", of_replay(&TraceReplay::blocked_by))
      .def("cluster", of_replay(&TraceReplay::cluster))
      .def("wasted", of_replay(&TraceReplay::wasted));
}
